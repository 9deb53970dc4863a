//! Protocols to scripts: requests are lists of parameters, and answers begin with the head of a CGI
//! script (RFC 3875).

mod body;
mod head;
mod params;
mod plain;

pub use body::Announced;
pub use head::ScriptHead;
pub(crate) use params::param_directive;
pub use params::{Param, Params};
pub use plain::{Dialect, Plain};

use std::sync::Arc;

use weir_conf::Error;
use weir_proto::pairs::Pairs;

use super::passing::UpstreamConf;
use crate::config::Setup;

/// Headers of answers that clients do not see unless `..._pass_header` says so.
pub const HIDDEN: &[&str] = &[
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];
/// The same with `Status`. nginx hides it for FastCGI and SCGI, but not for uwsgi.
pub const HIDDEN_AND_STATUS: &[&str] = &[
    "Status",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

/// Finishes the settings, after all simple directives of a block were read. `P` is the encoding of
/// parameters.
pub fn finish<P: Pairs>(
    setup: &mut Setup<'_>,
    prefix: &'static str,
    passing: &mut UpstreamConf,
    params: &mut Params,
    hidden: &[&str],
) -> Result<(), Error> {
    passing.finish(setup, prefix, hidden)?;
    params.finish::<P>(&mut setup.variables, passing.caching.is_on())?;
    if passing.caching.is_on() {
        if passing.caching.key.is_none() {
            let text = format!("no \"{prefix}_cache_key\" for \"{prefix}_cache\"");
            let at = passing.caching.at;
            setup.warnings.push(at.map_or_else(|| Error::warn(&text), |at| at.warning(&text)));
        }
        // Scripts get the client's method.
        Arc::make_mut(&mut passing.caching).convert_head = false;
    }
    Ok(())
}
