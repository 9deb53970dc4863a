//! QUIC to clients (RFC 9000), over `quinn-proto`, which knows neither sockets nor clocks.
//!
//! An [`Endpoint`] is a loop's socket for an address, with the connections that began there. One task drives it: it receives
//! datagrams in batches, passes each to its connection, and sends the connections' datagrams with as few calls as possible.
//! Other tasks use a [`Connection`], which then queues itself for the endpoint's task. So the endpoint sends in one turn of the
//! loop what all tasks have written in it.
//!
//! - In: datagrams; stream data from the application protocol.
//! - Out: datagrams; [`Events`] of a connection for the application protocol.
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
mod updates;
mod version;

pub use connection::{Connection, Events, ReadOutcome, StreamGone};
pub use crypto::{AsyncChooser, Chooser, ChosenConfig};
pub use endpoint::{
    Accepts, Admission, Begin, Congestion, Endpoint, EndpointSettings, HostKey, NewConnection,
};
pub use ids::{ANY_GENERATION, LENGTH as ID_LENGTH, Place, Steering};
pub use packet::Packet;
pub use quinn_proto::{ConnectionError, Dir, StreamId};
