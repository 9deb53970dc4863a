//! Starts a server with a configuration text and sends it requests. For tests only.
//!
//! ```no_run
//! let server = weir_testkit::Server::start(
//!     "target/debug/weir",
//!     "events {} http { server { listen 127.0.0.1:%%PORT%%; return 200 hello; } }",
//! );
//! assert_eq!(server.get("/").body(), "hello");
//! ```
//!
//! Failures panic with the server's log.

mod browser;
mod dice;
mod dir;
pub mod fastcgi;
mod http;
mod listen;
mod names;
mod openssl;
mod oracle;
mod page;
mod process;
pub mod processes;
mod server;
mod wait;

pub use browser::dump_page;
pub use dice::{Dice, number, seed};
pub use dir::Dir;
pub use http::{Client, Response};
pub use listen::{Deaf, listen};
pub use names::{NameRecord, NameReply, name_server};
pub use openssl::{certified, s_client};
pub use oracle::{Oracle, is_signed, unsigned};
pub use page::examples;
pub use process::{Process, children, memory_of, run, spent, traced, under_strace, wait_end};
pub use server::{Server, free_port};
pub use wait::{PATIENCE, ServerSide, ask_until, server_side, until, wait_delivered, waiting};
