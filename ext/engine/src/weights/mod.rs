pub mod shard_index;
