//! Serves precompressed files, for `gzip_static` and alike. nginx: ngx_http_gzip_static_module.

use weir_engine::FileKind;
use weir_log::Level;
use weir_proto::http1::Method;

use crate::files;
use crate::modules::static_;
use crate::phases::Step;
use crate::request::Request;

/// `gzip_static`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precompressed {
    /// No precompressed file is sent.
    #[default]
    Off,
    /// Sent to clients that accept the coding.
    On,
    /// Sent to all clients.
    Always,
}

/// The values of the directive.
pub const CHOICE: &[(&str, Precompressed)] =
    &[("off", Precompressed::Off), ("on", Precompressed::On), ("always", Precompressed::Always)];

/// Whether a request may be answered with a precompressed file.
pub fn applies(r: &Request) -> bool {
    matches!(r.method, Method::Get | Method::Head) && !r.path.ends_with(b"/")
}

/// Sends the file with this suffix. `accepted`: the client accepts the coding.
pub async fn send(
    r: &mut Request,
    mode: Precompressed,
    accepted: bool,
    suffix: &[u8],
    coding: &[u8],
) -> Step {
    let accepted = accepted || mode == Precompressed::Always;
    // Without the file, the response does not vary. So the file is looked up even for a client that
    // does not accept the coding, if `gzip_vary` is on.
    if !accepted && !r.conf().core.gzip_vary {
        return Step::Next;
    }
    let mut path = Vec::new();
    if let Err(error) = r.conf().core.map_path_into(r, &mut path) {
        return error.into();
    }
    path.extend_from_slice(suffix);
    let opened = match files::open(r, &path).await {
        Ok(opened) => opened,
        Err(error) => {
            if !error.is_absent() {
                let refused = error.is_denied() || error.is_symlink();
                let level = if refused { Level::Error } else { Level::Crit };
                error.log(r, level, &path);
            }
            return Step::Next;
        }
    };
    if mode == Precompressed::On {
        r.response.varies_by_encoding = true;
        if !accepted {
            return Step::Next;
        }
    }
    match opened.info.kind {
        FileKind::File => {}
        FileKind::Directory => return Step::Next,
        _ => {
            let path = weir_log::Bytes(&path);
            r.log(Level::Crit, format_args!("\"{path}\" is not a regular file"));
            return Step::Status(404);
        }
    }
    if let Err(step) = static_::describe(r, &opened) {
        return step;
    }
    r.response.content_encoding = Some(coding.to_vec());
    static_::send(r, opened).await
}
