//! Settings of all modules that pass requests on: `proxy_read_timeout`, `fastcgi_read_timeout` ...

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive as Line, Error, values};
use weir_upstream::config::Bind;
use weir_upstream::{Failures, Retry};

use super::names::Names;
use crate::config::Setup;
use crate::config::scope::Scope;
use crate::files::temp_file::TempPath;
use crate::request::Request;
use weir_values::Template;

mod declaration;
mod directives;

pub use declaration::{Part, count, joined};
pub(crate) use declaration::{group, part, upstream_directives};
pub(crate) use directives::passing_directives;

/// A usual first read, for a head and a small body.
const FIRST_READ: usize = 8192;
/// The largest first read.
const LARGEST_READ: usize = 65536;

/// Proxy settings of a location, for all protocols.
#[derive(Debug, Clone)]
pub struct UpstreamConf {
    /// `..._connect_timeout`
    pub connect_timeout: Duration,
    /// `..._send_timeout`
    pub send_timeout: Duration,
    /// `..._read_timeout`
    pub read_timeout: Duration,
    /// `..._buffering`
    pub buffering: bool,
    /// `..._request_buffering`
    pub request_buffering: bool,
    /// `..._ignore_client_abort`
    pub ignore_client_abort: bool,
    /// `..._intercept_errors`
    pub intercept_errors: bool,
    /// `..._pass_request_headers`
    pub pass_request_headers: bool,
    /// `..._pass_request_body`
    pub pass_request_body: bool,
    /// `..._pass_trailers`
    pub pass_trailers: bool,
    /// `..._force_ranges`
    pub force_ranges: bool,
    /// `..._buffer_size`: the longest head of an answer.
    pub buffer_size: u64,
    /// `..._buffers`: number and size.
    pub buffers: (u64, u64),
    /// `..._busy_buffers_size`
    pub busy_buffers_size: Option<u64>,
    /// `..._max_temp_file_size`
    pub max_temp_file_size: Option<u64>,
    /// `..._temp_file_write_size`
    pub temp_file_write_size: Option<u64>,
    /// `..._temp_path`
    pub temp_path: Arc<TempPath>,
    /// `..._next_upstream` and kin.
    pub retry: Retry,
    /// `..._next_upstream_delay`: the pause before another server is asked.
    pub retry_delay: Duration,
    /// `..._answer_timeout`: how long all attempts together may take until the head of an answer;
    /// zero for no limit.
    pub answer_timeout: Duration,
    /// `..._bind`: the local address, and whether it may be another host's.
    pub bind: Option<Bind>,
    /// `..._socket_keepalive`
    pub socket_keepalive: bool,
    /// `..._socket_rcvbuf`
    pub socket_rcvbuf: Option<u64>,
    /// `..._socket_sndbuf`
    pub socket_sndbuf: Option<u64>,
    /// `..._store`
    pub store: Option<super::store::Store>,
    /// `..._store_access`
    pub store_access: u32,
    /// `..._cache` and kin.
    pub caching: Arc<super::cache::Caching>,
    /// `..._ssl_...`
    pub tls: Arc<super::tls::Settings>,
    /// Scripts that take part in its handshakes with servers.
    pub scripts: Option<Arc<super::tls::HandshakeScripts>>,
    /// Certificates of servers that a script judges need not lead to an authority.
    pub any_path: bool,
    /// `..._limit_rate`
    pub limit_rate: Option<Template>,
    /// The most bytes of a read before the head is complete.
    pub first_read: usize,
    /// `..._hide_header`
    pub hide: Vec<Vec<u8>>,
    /// `..._pass_header`
    pub pass: Vec<Vec<u8>>,
    /// The headers that are hidden, after both directives.
    pub hidden: Names,
    /// `..._ignore_headers`
    pub ignored: Names,
}

impl Default for UpstreamConf {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        UpstreamConf {
            connect_timeout: minute,
            send_timeout: minute,
            read_timeout: minute,
            buffering: true,
            request_buffering: true,
            ignore_client_abort: false,
            intercept_errors: false,
            pass_request_headers: true,
            pass_request_body: true,
            pass_trailers: false,
            force_ranges: false,
            buffer_size: 4096,
            buffers: (8, 4096),
            busy_buffers_size: None,
            max_temp_file_size: None,
            temp_file_write_size: None,
            temp_path: Arc::new(TempPath::default()),
            retry: Retry::default(),
            retry_delay: Duration::ZERO,
            answer_timeout: Duration::ZERO,
            bind: None,
            socket_keepalive: false,
            socket_rcvbuf: None,
            socket_sndbuf: None,
            store: None,
            store_access: 0o600,
            caching: Arc::default(),
            tls: Arc::default(),
            scripts: None,
            any_path: false,
            limit_rate: None,
            first_read: FIRST_READ,
            hide: Vec::new(),
            pass: Vec::new(),
            hidden: Names::default(),
            ignored: Names::default(),
        }
    }
}

/// A timeout, cut to the rest of `..._answer_timeout`.
fn within(r: &Request, time: Duration) -> Duration {
    let Some(until) = r.contexts.upstream.answer_until else { return time };
    time.min(until.saturating_duration_since(r.event_loop.handle.now()))
}

impl UpstreamConf {
    /// How long connecting may take, for this request.
    pub fn connect_within(&self, r: &Request) -> Duration {
        within(r, r.contexts.upstream.times.connect.unwrap_or(self.connect_timeout))
    }

    /// How long a server may accept no bytes, for this request.
    pub fn send_within(&self, r: &Request) -> Duration {
        within(r, r.contexts.upstream.times.send.unwrap_or(self.send_timeout))
    }

    /// How long a server may send no bytes, for this request.
    pub fn read_within(&self, r: &Request) -> Duration {
        within(r, r.contexts.upstream.times.read.unwrap_or(self.read_timeout))
    }

    /// Bytes of an answer's body that may wait in memory for the client.
    pub fn memory(&self) -> usize {
        usize::try_from(self.buffers.0.saturating_mul(self.buffers.1)).unwrap_or(usize::MAX)
    }

    /// The largest temporary file of an answer.
    pub fn file(&self) -> u64 {
        self.max_temp_file_size.unwrap_or(1 << 30)
    }

    /// Finishes the settings, after all simple directives of a block were read: checks sizes,
    /// merges names of headers, and looks the cache up. `hidden`: the names that the protocol
    /// always hides.
    pub fn finish(
        &mut self,
        setup: &mut Setup<'_>,
        prefix: &'static str,
        hidden: &[&str],
    ) -> Result<(), Error> {
        self.check_sizes(prefix).map_err(|text| setup.error_at_end(text))?;
        // What is beyond the buffer waits in the socket until its time has come, as in nginx.
        let least = if self.limit_rate.is_some() { 0 } else { FIRST_READ };
        self.first_read = self.head_room().clamp(least, LARGEST_READ);
        self.hide(hidden);
        if self.temp_path.directory.as_os_str().is_empty() {
            self.temp_path = setup.default_temp_path(&format!("{prefix}_temp"));
        }
        if self.caching.is_on() {
            Arc::make_mut(&mut self.caching).finish(&setup.caches, prefix)?;
        }
        Ok(())
    }

    /// Computes the headers that are hidden from clients: the protocol's and the configuration's.
    pub fn hide(&mut self, hidden: &[&str]) {
        self.hidden = hidden.iter().collect();
        self.hidden.extend(&self.hide);
        for name in &self.pass {
            self.hidden.remove(name);
        }
    }

    /// The longest head, and the longest trailers.
    pub fn head_room(&self) -> usize {
        usize::try_from(self.buffer_size).unwrap_or(usize::MAX)
    }

    fn check_sizes(&self, prefix: &str) -> Result<(), String> {
        let largest = self.buffer_size.max(self.buffers.1);
        if self.buffers.0 < 2 {
            return Err(format!("there must be at least 2 \"{prefix}_buffers\""));
        }
        let both = format!(
            "the maximum of the value of \"{prefix}_buffer_size\" and one of the \"{prefix}_buffers\""
        );
        // Two buffers may be busy unless the configuration says otherwise.
        let busy = self.busy_buffers_size.unwrap_or(largest.saturating_mul(2));
        let name = format!("\"{prefix}_busy_buffers_size\"");
        if busy < largest {
            return Err(format!("{name} must be equal to or greater than {both}"));
        }
        if busy > (self.buffers.0 - 1).saturating_mul(self.buffers.1) {
            return Err(format!(
                "{name} must be less than the size of all \"{prefix}_buffers\" minus one buffer"
            ));
        }
        if self.temp_file_write_size.is_some_and(|n| n < largest) {
            return Err(format!(
                "\"{prefix}_temp_file_write_size\" must be equal to or greater than {both}"
            ));
        }
        if self.max_temp_file_size.is_some_and(|n| n != 0 && n < largest) {
            return Err(format!(
                "\"{prefix}_max_temp_file_size\" must be equal to zero to disable temporary files \
                 usage or must be equal to or greater than {both}"
            ));
        }
        Ok(())
    }
}

/// `..._next_upstream`. With `off` among them, no other word counts.
pub fn failures(d: &Line) -> Failures {
    if d.args.iter().any(|word| word.is("off")) {
        return Failures::NONE;
    }
    // The tables of `conf` have checked the words.
    d.args
        .iter()
        .filter_map(|w| Failures::word(&w.bytes.to_ascii_lowercase()))
        .fold(Failures::NONE, Failures::and)
}

/// `..._next_upstream_tries`
pub fn tries(d: &Line) -> Result<u32, Error> {
    Ok(u32::try_from(d.number()?).unwrap_or(u32::MAX))
}

/// Names of headers.
pub fn names(d: &Line) -> Vec<Vec<u8>> {
    d.args.iter().map(|word| word.bytes.clone()).collect()
}

/// `..._limit_rate RATE`
pub fn limit_rate(s: &mut Scope<'_, '_>, d: &Line) -> Result<Option<Template>, Error> {
    let Some(word) = d.args.first() else { return Ok(None) };
    let rate = s.setup.template(d, word)?;
    if rate.constant().is_some_and(|text| values::size(text).is_none()) {
        return Err(d.problem("invalid value"));
    }
    Ok(Some(rate))
}
