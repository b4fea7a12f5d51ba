"""The speculation protocol over gRPC: frames in, frames out; nothing above sees protobuf."""
