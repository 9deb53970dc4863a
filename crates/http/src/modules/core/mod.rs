//! What every server has: addresses, names, locations, files' places, limits and time-outs.
//! nginx: ngx_http_core_module.

use std::path::PathBuf;

use weir_proto::http1::{HeaderId, Method};

use crate::config::location::LocationId;
use crate::counts;
use crate::files;
use crate::modules::Module;
use crate::phases::Step;
use crate::request::Request;
use crate::request::user_agent::Browser;

mod blocks;
mod conf;
mod directives;
mod errors;
mod limit_except;
mod rate;
mod server_conf;
mod set;
mod symlinks;
mod try_files;
mod types;

pub use blocks::open_reserved;
pub use conf::{Aio, BodyInFile, Conf, FileCache, OpenFiles, Root, StandsFor, Tokens};
pub use errors::{error_page, has_error_page};
pub use rate::{rate, send_limited};
pub use server_conf::ServerConf;
pub use symlinks::Refuse;
pub use try_files::{TryFiles, handler as try_files, wanted as wants_try_files};

/// The module.
pub const MODULE: Module =
    Module { name: "http_core", directives: directives::DIRECTIVES, init: |_| {} };

/// A location was found by its path: may this request be here?
pub fn enter_location(r: &mut Request) -> Option<Step> {
    if r.conf().core.internal && !r.internal {
        return Some(Step::Status(404));
    }
    entered(r);
    check_body_size(r)
}

/// Another location serves the request, from its rewrite phase on.
fn entered(r: &mut Request) {
    r.chosen_content = None;
    counts::at(r);
    limit_except::enter(r);
    settings_changed(r);
}

/// `client_max_body_size`, as far as the size is known: from the head, or because the body was read elsewhere.
pub fn check_body_size(r: &mut Request) -> Option<Step> {
    let limit = r.conf().core.client_max_body_size;
    let length = r.body.size().filter(|length| limit > 0 && *length > limit)?;
    r.body.refuse();
    r.log(
        weir_log::Level::Error,
        format_args!("client intended to send too large body: {length} bytes"),
    );
    Some(Step::Status(413))
}

/// Goes on in a named location, whatever its path may be.
pub fn enter_named(r: &mut Request, id: LocationId) {
    r.location = r.site.location(id);
    entered(r);
}

/// Other settings are in force (a location, an `if` in it): what they say of the connection holds.
pub fn settings_changed(r: &mut Request) {
    if !r.keepalive {
        return;
    }
    let core = &r.conf().core;
    let age = r.event_loop.handle.now().saturating_duration_since(r.conn.started);
    r.keepalive = !core.keepalive_timeout.is_zero()
        && r.conn.requests.get() < core.keepalive_requests
        && age <= core.keepalive_time
        && !browser_is_disabled(r, core);
}

/// `keepalive_disable`
fn browser_is_disabled(r: &Request, core: &Conf) -> bool {
    let disable = core.keepalive_disable;
    if !(disable.safari || disable.msie6 && r.method == Method::Post) {
        return false;
    }
    let browser = Browser::of(r.header(HeaderId::UserAgent).unwrap_or_default());
    (disable.safari && browser.safari)
        || (disable.msie6 && browser.msie6 && r.method == Method::Post)
}

impl Conf {
    /// The file that the request's path stands for: `$request_filename`.
    pub fn map_path(&self, r: &mut Request) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        let mut path = Vec::new();
        let _ = self.map_path_into(r, &mut path);
        PathBuf::from(std::ffi::OsString::from_vec(path))
    }

    /// Appends the file's path: `root` with the whole path, `alias` with what follows the location's name.
    /// An error is the answer's status where there is no such path; the log was told.
    pub fn map_path_into(&self, r: &mut Request, out: &mut Vec<u8>) -> Result<(), u16> {
        let start = out.len();
        self.root_path_into(r, out)?;
        match self.root.stands_for {
            StandsFor::Nothing => out.extend_from_slice(&r.path),
            StandsFor::Prefix(len) => out.extend_from_slice(r.path.get(len..).unwrap_or_default()),
            StandsFor::Match if r.path_below_alias => out.extend_from_slice(&r.path),
            StandsFor::Match => {}
        }
        if files::climbs(r, &out[start..], &self.root.value) {
            out.truncate(start);
            return Err(403);
        }
        Ok(())
    }

    /// What `root` or `alias` names for this request. An error as above.
    pub fn root_path(&self, r: &mut Request) -> Result<Vec<u8>, u16> {
        let mut out = Vec::new();
        self.root_path_into(r, &mut out)?;
        if files::climbs(r, &out, &self.root.value) { Err(403) } else { Ok(out) }
    }

    fn root_path_into(&self, r: &mut Request, out: &mut Vec<u8>) -> Result<(), u16> {
        if self.root.is_alias() && r.rewritten_in_place {
            let name = String::from_utf8_lossy(&r.location.name);
            r.log(
                weir_log::Level::Alert,
                format_args!(
                    "\"alias\" cannot be used in location \"{name}\" where URI was rewritten"
                ),
            );
            return Err(500);
        }
        self.root_into(r, out);
        Ok(())
    }

    /// Appends the root itself, absolute: `$document_root`.
    pub fn root_into(&self, r: &mut Request, out: &mut Vec<u8>) {
        let start = out.len();
        self.root.value.eval_into(r, out);
        if out.get(start) != Some(&b'/') {
            let prefix = [r.site.prefix.as_slice(), b"/"].concat();
            out.splice(start..start, prefix);
        }
    }
}
