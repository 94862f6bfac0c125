// RocketMQ's Go client catches up:
// catch_up NAME_SERVER TOPIC GROUP BATCH PULL_SIZE MESSAGES WARM.
// An orderly push consumer whose listener counts, as bench/peers/java/CatchUp.java.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const client = "github.com/apache/rocketmq-client-go/v2"

const deadline = 300 * time.Second

func main() {
	if len(os.Args) != 8 {
		stop("expected NAME_SERVER TOPIC GROUP BATCH PULL_SIZE MESSAGES WARM")
	}
	batch, pullSize := number(os.Args[4]), number(os.Args[5])
	wanted, warm := int64(number(os.Args[6])), int64(number(os.Args[7]))
	var counted atomic.Int64
	var firstWall, firstCPU, lastWall, lastCPU atomic.Int64 // in nanoseconds
	began := time.Now()
	done := make(chan struct{})

	push, err := rocketmq.NewPushConsumer(
		consumer.WithGroupName(os.Args[3]),
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{os.Args[1]})),
		consumer.WithConsumerModel(consumer.Clustering),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(true),
		consumer.WithConsumeMessageBatchMaxSize(batch),
		consumer.WithPullBatchSize(int32(pullSize)),
	)
	check(err)
	listen := func(
		_ context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		after := counted.Add(int64(len(messages)))
		before := after - int64(len(messages))
		// One call sees each of these, as `after` of one call is `before` of the next.
		if before <= warm && warm < after {
			firstWall.Store(int64(time.Since(began)))
			firstCPU.Store(int64(cpuTime()))
		}
		if before < wanted && wanted <= after {
			lastWall.Store(int64(time.Since(began)))
			lastCPU.Store(int64(cpuTime()))
			close(done)
		}
		return consumer.ConsumeSuccess, nil
	}
	check(push.Subscribe(os.Args[2], consumer.MessageSelector{}, listen))
	check(push.Start())
	select {
	case <-done:
	case <-time.After(deadline):
		stop(fmt.Sprintf("only %d of %d messages within %s", counted.Load(), wanted, deadline))
	}
	check(push.Shutdown()) // by now it has counted some more: there are more in the topic
	wall := time.Duration(lastWall.Load() - firstWall.Load())
	cpu := time.Duration(lastCPU.Load() - firstCPU.Load())
	row, err := json.Marshal(map[string]any{
		"peer":        fmt.Sprintf("Go client, batch %d", batch),
		"messages":    wanted - warm,
		"seconds":     wall.Seconds(),
		"cpu_seconds": cpu.Seconds(),
		"detail":      map[string]string{"go": runtime.Version(), "client": clientVersion()},
	})
	check(err)
	fmt.Println(string(row))
}

// cpuTime returns the processor time of the process, user and system.
func cpuTime() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// clientVersion returns the version of the client that was linked.
func clientVersion() string {
	if built, known := debug.ReadBuildInfo(); known {
		for _, module := range built.Deps {
			if module.Path == client {
				return module.Version
			}
		}
	}
	return "unknown"
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		stop(err.Error())
	}
}

func stop(why string) {
	fmt.Fprintln(os.Stderr, "go_client: "+why)
	os.Exit(1)
}
