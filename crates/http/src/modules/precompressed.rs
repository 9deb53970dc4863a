//! Files that were compressed beforehand, beside the plain ones: `gzip_static` and its kin.
//! nginx: ngx_http_gzip_static_module.

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
    /// Not looked for.
    #[default]
    Off,
    /// For clients that take the coding.
    On,
    /// For all.
    Always,
}

/// The words of a configuration.
pub const CHOICE: &[(&str, Precompressed)] =
    &[("off", Precompressed::Off), ("on", Precompressed::On), ("always", Precompressed::Always)];

/// Whether a request may be for such a file at all.
pub fn concerns(r: &Request) -> bool {
    matches!(r.method, Method::Get | Method::Head) && !r.path.ends_with(b"/")
}

/// Answers with the file of this suffix. `taken`: the client takes the coding.
pub async fn send(
    r: &mut Request,
    mode: Precompressed,
    taken: bool,
    suffix: &[u8],
    coding: &[u8],
) -> Step {
    let taken = taken || mode == Precompressed::Always;
    // Whether the answer depends on the client is of interest only if the file is there.
    if !taken && !r.conf().core.gzip_vary {
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
        if !taken {
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
