//! NATS JetStream: a queue whose destination, or a consumer whose source, is there.
