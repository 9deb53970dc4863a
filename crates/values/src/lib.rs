//! Values of a configuration, and what they are for a request or a session: addresses and networks, regular
//! expressions, variables, and texts with variables in them.
//!
//! All of it is generic over its [`Subject`]: `http` and `stream` have the same variables of what both know,
//! and each adds its own.

pub mod address;
pub mod cidr;
pub mod escape;
pub mod forwarded;
pub mod geo;
pub mod listen;
pub mod log;
pub mod map;
pub mod names;
mod reading;
pub mod regex;
pub mod split_clients;
mod subject;
mod template;
mod variables;

pub use address::Address;
pub use cidr::Cidr;
pub use reading::Reading;
pub use regex::Regex;
pub use subject::{Identity, Subject, binary};
pub use template::Template;
pub use variables::{Get, NotStored, Put, Values, VariableId, Variables};
