//! What every server has: addresses, names, locations, files' places, limits and time-outs.
//! nginx: ngx_http_core_module.

use std::path::PathBuf;

use crate::modules::Module;
use crate::phases::Step;
use crate::request::Request;

mod blocks;
mod conf;
mod directives;
mod errors;
mod rate;
mod types;

pub use blocks::open_reserved;
pub use conf::{Conf, Root, ServerConf, Tokens, TryFiles};
pub use errors::error_page;
pub use rate::{rate, send_limited};

/// The module.
pub const MODULE: Module =
    Module { name: "http_core", directives: directives::DIRECTIVES, init: |_| {} };

/// A location was found: its limits begin to count.
pub fn enter_location(r: &mut Request) -> Option<Step> {
    let core = &r.conf().core;
    if core.internal && !r.internal {
        return Some(Step::Status(404));
    }
    settings_changed(r);
    let limit = core.client_max_body_size;
    if let Some(length) = r.body.length
        && limit > 0
        && length > limit
        && !r.body.is_read()
    {
        r.log(
            weir_log::Level::Error,
            format_args!("client intended to send too large body: {length} bytes"),
        );
        return Some(Step::Status(413));
    }
    None
}

/// Other settings are in force (a location, an `if` in it): what they say of the connection holds.
pub fn settings_changed(r: &mut Request) {
    let core = &r.conf().core;
    if r.keepalive {
        let age = r.worker.handle.now().saturating_duration_since(r.conn.started);
        r.keepalive = !core.keepalive_timeout.is_zero()
            && r.conn.requests.get() < core.keepalive_requests
            && age <= core.keepalive_time;
    }
}

impl Conf {
    /// The file that the request's path stands for: `$request_filename`.
    pub fn map_path(&self, r: &mut Request) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        let mut path = Vec::new();
        self.map_path_into(r, &mut path);
        PathBuf::from(std::ffi::OsString::from_vec(path))
    }

    /// Appends the file's path: `root` with the whole path, `alias` with what follows the location's name.
    pub fn map_path_into(&self, r: &mut Request, out: &mut Vec<u8>) {
        self.root.value.eval_into(r, out);
        if !self.root.alias {
            out.extend_from_slice(&r.path);
            return;
        }
        if !matches!(r.location.kind, crate::location::Kind::Regex(_)) {
            let skip = self.root.alias_of.min(r.path.len());
            out.extend_from_slice(&r.path[skip..]);
        }
    }
}
