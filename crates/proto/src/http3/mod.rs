//! HTTP/3: numbers, frames, settings, compression of fields. RFC 9114 and RFC 9204.
//!
//! This module knows no streams and no connection: the server or client decides what a frame does.
//! A stream's bytes come in chunks of any size. The readers take all bytes of a chunk and remember
//! what they need, so that a caller keeps no chunk:
//!
//! - a stream that the peer opens in one direction begins with a number, its [`StreamType`]:
//!   [`varint::PartialVarint`] reads it;
//! - [`ControlFrames`] reads the control stream behind that number;
//! - [`RequestFrames`] reads one side of a request stream;
//! - [`qpack::Decoder`] reads the sections of fields of all streams, and the peer's encoder's stream.

mod control;
mod error;
pub mod frame;
pub mod qpack;
mod request;
mod settings;
pub mod varint;

#[cfg(test)]
pub(crate) mod tests;

pub use control::{ControlFrames, ControlPart};
pub use error::{ErrorCode, FrameError};
pub use frame::{FrameType, StreamType};
pub use request::{RequestFrames, RequestPart, Section};
pub use settings::{Settings, SettingsError};

/// Which end of a connection reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that gets requests.
    Server,
    /// The end that makes requests.
    Client,
}
