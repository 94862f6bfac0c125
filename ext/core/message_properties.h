/* Property text (docs/internals/protocol.md#stored-message) as the codec's own files read it. */
#ifndef OMQ_MESSAGE_PROPERTIES_H
#define OMQ_MESSAGE_PROPERTIES_H

#include "ordermq.h"

/* omq_property_find of TAGS. */
bool omq_find_tag(const uint8_t *text, size_t size, omq_text *tag);

#endif
