//! A Rust client of RocketMQ catches up:
//! `rust_catch_up NAME_SERVER TOPIC GROUP BATCH PULL_SIZE MESSAGES WARM`.
//! An orderly push consumer whose listener counts, as bench/peers/java/CatchUp.java, and sees that
//! the offsets of each queue ascend without gaps.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeOrderlyContext, ConsumeOrderlyStatus,
    DefaultMQPushConsumer, MQPushConsumer, MessageListenerOrderly,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};

const DEADLINE: Duration = Duration::from_secs(300);

#[derive(Default)]
struct Counted {
    messages: u64,
    next: HashMap<i32, i64>, // queue -> its next offset
    out_of_order: u64,
    first: Option<(Instant, f64)>,
    last: Option<(Instant, f64)>,
}

struct Counting {
    counted: Arc<(Mutex<Counted>, Condvar)>,
    wanted: u64,
    warm: u64,
}

impl MessageListenerOrderly for Counting {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        let (lock, done) = &*self.counted;
        let mut counted = lock.lock().unwrap();
        for message in messages {
            let (queue, offset) = (message.queue_id(), message.queue_offset());
            let expected = *counted.next.get(&queue).unwrap_or(&offset);
            counted.out_of_order += u64::from(offset != expected);
            counted.next.insert(queue, offset + 1);
        }
        let before = counted.messages;
        counted.messages += messages.len() as u64;
        if before <= self.warm && self.warm < counted.messages {
            counted.first = Some((Instant::now(), cpu_seconds()));
        }
        if before < self.wanted && self.wanted <= counted.messages {
            counted.last = Some((Instant::now(), cpu_seconds()));
            done.notify_all();
        }
        Ok(ConsumeOrderlyStatus::Success)
    }
}

/// Return the processor time of the process, user and system.
fn cpu_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn stop(why: &str) -> ! {
    eprintln!("rust_client: {why}");
    std::process::exit(1)
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| stop(&format!("{text}: expected a number")))
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [server, topic, group, batch, pull_size, wanted, warm] = &words[..] else {
        stop("expected NAME_SERVER TOPIC GROUP BATCH PULL_SIZE MESSAGES WARM")
    };
    let (batch, wanted, warm) = (number(batch), number(wanted), number(warm));
    let counted = Arc::new((Mutex::new(Counted::default()), Condvar::new()));
    let owner = RuntimeOwner::plan(RuntimeConfig::default())
        .unwrap_or_else(|error| stop(&format!("{error:?}")))
        .build()
        .unwrap_or_else(|error| stop(&format!("{error:?}")));
    let telemetry = rocketmq_observability::install_global(&Default::default())
        .unwrap_or_else(|error| stop(&format!("{error:?}")));
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("client"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )
    .unwrap_or_else(|error| stop(&format!("{error:?}")));
    let mut consumer = DefaultMQPushConsumer::builder(runtime)
        .consumer_group(group.clone())
        .name_server_addr(server.clone())
        .message_model(MessageModel::Clustering)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .consume_message_batch_max_size(batch as u32)
        .pull_batch_size(number(pull_size) as u32)
        .build();
    if let Err(error) = consumer.subscribe(topic.as_str(), "*").await {
        stop(&format!("{error:?}"));
    }
    consumer.register_message_listener_orderly(Counting { counted: counted.clone(), wanted, warm });
    if let Err(error) = consumer.start().await {
        stop(&format!("{error:?}"));
    }
    let waiting = counted.clone();
    tokio::task::spawn_blocking(move || {
        let (lock, done) = &*waiting;
        let held = lock.lock().unwrap();
        let (held, _) = done
            .wait_timeout_while(held, DEADLINE, |counted| counted.last.is_none())
            .unwrap();
        if held.last.is_none() {
            stop(&format!("only {} of {wanted} messages within {DEADLINE:?}", held.messages));
        }
    })
    .await
    .unwrap_or_else(|error| stop(&format!("{error:?}")));
    let found = counted.0.lock().unwrap();
    if found.out_of_order > 0 {
        stop(&format!("{} of {} messages out of order", found.out_of_order, found.messages));
    }
    let (first, last) = (found.first.unwrap(), found.last.unwrap());
    println!(
        "{{\"peer\": \"Rust client, batch {batch}\", \"messages\": {}, \"seconds\": {:.6}, \
         \"cpu_seconds\": {:.6}, \"detail\": {{\"client\": \"rocketmq-client-rust 1.0.0\"}}}}",
        wanted - warm,
        (last.0 - first.0).as_secs_f64(),
        last.1 - first.1,
    );
    // Its shutdown is not what is measured, and its commits are nobody's.
    std::process::exit(0);
}
