//! Fuzz targets: bytes that a peer may send, and the laws that hold for all of them.
//!
//! As plain tests they run the kept corpus (`__fuzz__/*/corpus`) and a second of random inputs;
//! CONTRIBUTING.md tells how to let a fuzzer look for longer.

mod bodies;
mod heads;
mod http3;
mod messages;
mod texts;
