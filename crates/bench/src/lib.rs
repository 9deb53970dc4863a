//! `weir bench`, a load generator, and `weir histogram`.
//!
//! A load generator that measures servers must not share their code: of weir it uses the event
//! loop, the wire format and TLS, nothing of HTTP's server side. A [`LoadPlan`] says what to send
//! where and how often, and [`run`] does it. The [`RunOutcome`] has the figures, and says whether
//! the client itself was the bottleneck.
//!
//! - In: a plan, from the command line or from an experiment.
//! - Out: counts, times and errors of all requests, as text, JSON or a picture.
//! - Callers: the binary `weir`, and `lab`.

mod answer;
mod client;
mod command;
mod drive;
mod failure;
mod histogram;
mod http2;
mod http3;
mod log2;
mod machine;
mod options;
mod pace;
mod peer;
mod plan;
pub mod plot;
mod report;
mod site;
mod streams;
mod tally;
mod url;

#[cfg(test)]
mod tests;

pub use command::{bench, histogram};
pub use drive::{RunOutcome, RunProgress, RunWatcher, run};
pub use failure::RequestFailure;
pub use log2::{Figures, Log2};
pub use machine::{CpuUse, cpu_of_process};
pub use options::{HistogramOptions, Options};
pub use peer::{TargetServer, TlsTarget};
pub use plan::{Closing, LoadPlan, Pace, PreparedRequest, Protocol, RequestShape};
pub use report::{json, svg, text};
pub use tally::{Sample, Tally};
pub use url::{Url, UrlError};
pub use weir_tls::{CertificateTrust, TrustError};
