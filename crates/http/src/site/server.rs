//! Settings of a whole server.

use std::time::Duration;

use weir_conf::Error;
use weir_proto::http1::HeadLimits;
use weir_values::Template;

use crate::listen::ListenLine;
use crate::names::ServerName;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct ServerConf {
    /// `client_header_buffer_size`, `large_client_header_buffers`, `merge_slashes` and alike.
    pub head_limits: HeadLimits,
    /// `client_header_timeout`
    pub client_header_timeout: Duration,
    /// `client_body_early_read`: the body is read before the phases if one of these is neither
    /// empty nor `0`.
    pub early_read: Vec<Template>,
    /// The `listen` lines so far.
    pub listens: Vec<ListenLine>,
    /// The names of `server_name` so far.
    pub names: Vec<ServerName>,
    /// The TLS context.
    pub ssl: Option<std::sync::Arc<weir_ssl::server::ServerContext>>,
    /// `connection_pool_size`
    pub connection_pool: u64,
}

impl Default for ServerConf {
    fn default() -> Self {
        ServerConf {
            head_limits: HeadLimits::default(),
            client_header_timeout: Duration::from_secs(60),
            early_read: Vec::new(),
            listens: Vec::new(),
            names: Vec::new(),
            ssl: None,
            connection_pool: 512,
        }
    }
}

impl ServerConf {
    /// Checks settings that depend on each other.
    pub fn check(&self) -> Result<(), Error> {
        if (self.head_limits.line as u64) < self.connection_pool {
            return Err(Error::emerg(
                "the \"large_client_header_buffers\" size must be equal to or greater than \
                 \"connection_pool_size\"",
            ));
        }
        Ok(())
    }
}
