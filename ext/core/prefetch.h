/* Memory that is read soon: on its way while something else is done. */
#ifndef OMQ_PREFETCH_H
#define OMQ_PREFETCH_H

#if defined(__GNUC__) || defined(__clang__)
#define OMQ_PREFETCH(address) __builtin_prefetch(address)
#else
#define OMQ_PREFETCH(address) ((void)(address))
#endif

#endif
