//! Values of a configuration, and their meaning for a request or a session: addresses and networks,
//! regular expressions, variables, and texts with variables.
//!
//! All of it is generic over its [`Subject`]: `http` and `stream` share the variables that both
//! know, and each adds its own.
//!
//! - In: the arguments of directives; later a subject, which has the values of variables.
//! - Out: addresses, texts, decisions and log lines for that subject.
//! - Callers: `http`, `stream`, and the crates that both use.

pub mod access;
pub mod address;
pub mod builtin;
pub mod cidr;
mod command;
pub mod doing;
pub mod endpoints;
pub mod escape;
pub mod forwarded;
pub mod geo;
pub mod geoip;
mod inputs;
pub mod limit_conn;
pub mod listen;
pub mod log;
pub mod map;
pub mod names;
pub mod presence;
mod reading;
pub mod regex;
mod repeat_filter;
pub mod split_clients;
pub mod status;
mod subject;
mod template;
mod variables;
pub mod zones;

pub use address::Address;
pub use cidr::Cidr;
pub use command::{ChangeAnswer, ChangeKind, ChangeOutcome, ChangePlace, ChangeRequest, Command};
pub use inputs::Inputs;
pub use reading::{Reading, UsedDirectives};
pub use regex::Regex;
pub use subject::{Identity, Offset, Retire, Subject, next_connection};
pub use template::{Template, TemplateError};
pub use variables::{Get, NotStored, Put, VariableId, VariableUses, VariableValues, Variables};

/// weir follows the configuration language, messages and behaviour of this nginx release:
/// `$nginx_version`.
pub const NGINX_VERSION: &str = "1.31.5";
