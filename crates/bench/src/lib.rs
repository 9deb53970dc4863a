//! `weir bench`, a load generator, and `weir histogram`.
//!
//! A load generator that measures servers must not share their code. Of weir it uses the event
//! loop, the wire formats and TLS, but nothing of the HTTP server. A [`LoadPlan`] says which
//! requests are sent where and at which pace. [`run`] carries it out. The [`RunOutcome`] has the
//! results, and shows whether the client itself was the bottleneck.
//!
//! - In: a plan, from the command line or from an experiment.
//! - Out: counts, times and failures of all requests, as text, JSON or a chart.
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

mod streams;
mod tally;
mod thread_state;
mod url;

#[cfg(test)]
mod tests;

pub use command::{bench, histogram};
pub use drive::{RunOutcome, RunProgress, RunWatcher, run};
pub use failure::RequestFailure;
pub use log2::{Figures, Log2Histogram};
pub use machine::CpuUse;
pub use options::{HistogramOptions, Options};
pub use peer::{TargetServer, TlsTarget};
pub use plan::{Closing, LoadPlan, Pace, PreparedRequest, Protocol, RequestShape};
pub use report::{json, svg, text};
pub use tally::{Sample, Tally};
pub use url::{Url, UrlError};
pub use weir_tls::{CertificateTrust, TrustError};
