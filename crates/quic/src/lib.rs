//! QUIC to clients (RFC 9000), over `quinn-proto`, which knows neither sockets nor clocks.
//!
//! An [`Endpoint`] is a loop's socket for an address, with the connections that began there. One task drives it: it receives
//! datagrams in batches, gives each to its connection, and sends what connections have to say with as few calls as possible.
//! Connections are touched by other tasks through [`Connection`], which marks them for the endpoint's task; that sends what
//! all of them have said in one turn of the loop together.
//!
//! - In: datagrams; what a protocol above writes to streams.
//! - Out: datagrams; [`Events`] of a connection for the protocol above.
//! - Callers: `http`, for HTTP/3.

mod congestion;
mod connection;
mod crypto;
mod endpoint;
#[cfg(test)]
mod fuzz;
mod ids;
mod keys;
mod links;
mod packet;
mod paths;
mod version;

pub use connection::{Connection, Events, ReadOutcome, StreamGone};
pub use crypto::{Asker, Chooser, ChosenConfig};
pub use endpoint::{
    Accepts, Admission, Begin, Congestion, Endpoint, EndpointSettings, HostKey, NewConnection,
};
pub use ids::{ANY_GENERATION, LENGTH as ID_LENGTH, Place, Steering};
pub use packet::Packet;
pub use quinn_proto::{ConnectionError, Dir, StreamId};
