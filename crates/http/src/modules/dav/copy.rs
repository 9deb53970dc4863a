//! COPY and MOVE. All headers are checked before a file is changed.

use weir_log::Level;
use weir_proto::http1::Method;
use weir_proto::uri;

use super::methods::Transfer;
use super::{Depth, depth_header, has_body, map_path, refuse, status};
use crate::files::LinkRule;
use crate::files::disk::{self, on_disk};
use crate::modules::dav::CONF;
use crate::modules::dav_ext;
use crate::phases::Step;
use crate::request::Request;
use crate::site::core::StandsFor;

/// Carries out COPY or MOVE.
pub async fn handler(r: &mut Request) -> Step {
    let (transfer, to_collection) = match plan(r).await {
        Ok(plan) => plan,
        Err(step) => return step,
    };
    let done = on_disk(r, move |disk| disk.transfer(&transfer, to_collection)).await;
    if done.is_ok() && r.method == Method::Move {
        dav_ext::remove_locks(r);
    }
    status(done)
}

async fn plan(r: &mut Request) -> Result<(Transfer, bool), Step> {
    if has_body(r) {
        return Err(refuse(r, 415, "COPY and MOVE with body are unsupported"));
    }
    let Some(destination) = r.header_named(b"destination").map(<[u8]>::to_vec) else {
        return Err(refuse(r, 400, "client sent no \"Destination\" header"));
    };
    let shown = weir_log::Bytes(&destination).to_string();
    let target = target(r, &destination, &shown)?;
    check_alias(r, &target, &shown)?;
    check_depth(r)?;
    let overwrite = overwrite(r)?;

    let from = map_path(r).await?;
    let own = std::mem::replace(&mut r.path, target);
    let to = map_path(r).await;
    r.path = own;
    let to = to?;
    let (from, to) = (merge_slashes(&from), merge_slashes(&to));
    let to_collection = to.ends_with(b"/");
    let (from, to) = (without_slash(&from), without_slash(&to));
    check_overlap(r, from, to, to_collection, &shown)?;
    let transfer = Transfer {
        from: disk::path(from),
        to: disk::path(to),
        moves: r.method == Method::Move,
        collection: r.path.ends_with(b"/"),
        overwrite,
        names: (weir_log::Bytes(&r.path).to_string(), shown),
        method: weir_log::Bytes(r.method_name()).to_string(),
        access: CONF.of(r.conf()).access,
        links: LinkRule::of(r),
    };
    Ok((transfer, to_collection))
}

fn invalid(r: &Request, shown: &str) -> Step {
    refuse(r, 400, &format!("client sent invalid \"Destination\" header: \"{shown}\""))
}

/// Why a URI has no path on this server.
enum ForeignUri {
    /// The request has no host to compare with.
    NoHost,
    /// The URI names another host.
    Host,
    /// The URI is malformed or has another scheme than this connection.
    Invalid,
}

/// The part of a URI behind its host.
fn behind_host<'u>(r: &Request, uri: &'u [u8]) -> Result<&'u [u8], ForeignUri> {
    if uri.starts_with(b"/") {
        return Ok(uri);
    }
    if r.host.is_empty() {
        return Err(ForeignUri::NoHost);
    }
    let scheme: &[u8] = if r.conn.is_tls() { b"https://" } else { b"http://" };
    let host = uri.strip_prefix(scheme).ok_or(ForeignUri::Invalid)?;
    let behind = host.strip_prefix(r.host.as_slice()).ok_or(ForeignUri::Host)?;
    let slash = behind.iter().position(|b| *b == b'/').ok_or(ForeignUri::Invalid)?;
    Ok(&behind[slash..])
}

/// The path of a URI on this host. `None` for another host and for a path above the root.
pub(crate) fn own_path(r: &Request, uri: &[u8]) -> Option<Vec<u8>> {
    path_behind_host(r, behind_host(r, uri).ok()?)
}

/// The path that a request for this target would have: a file must not have two paths, since locks
/// and checks compare paths. `None` if it leads above the root.
fn path_behind_host(r: &Request, target: &[u8]) -> Option<Vec<u8>> {
    uri::is_unsafe(target).ok()?;
    let (merge_slashes, mut path) = (r.server.conf.head_limits.merge_slashes, Vec::new());
    uri::normalise(target, merge_slashes, &mut path).ok().map(|()| path)
}

/// The decoded path of `Destination`, which must be on this host and not above the root.
fn target(r: &Request, destination: &[u8], shown: &str) -> Result<Vec<u8>, Step> {
    let raw = behind_host(r, destination).map_err(|why| match why {
        ForeignUri::NoHost => refuse(r, 400, "client sent no \"Host\" header"),
        ForeignUri::Invalid => invalid(r, shown),
        ForeignUri::Host => {
            let text = "is handled by different repository than the source URI";
            refuse(r, 400, &format!("\"Destination\" URI \"{shown}\" {text}"))
        }
    })?;
    let Some(target) = path_behind_host(r, raw) else {
        r.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", weir_log::Bytes(raw)));
        return Err(invalid(r, shown));
    };
    if r.path.ends_with(b"/") != target.ends_with(b"/") {
        let path = weir_log::Bytes(&r.path);
        let text = "should be either collections or non-collections";
        let text = format!("both URI \"{path}\" and \"Destination\" URI \"{shown}\" {text}");
        return Err(refuse(r, 409, &text));
    }
    Ok(target)
}

/// With `alias`, the path of the destination must begin with the location's name, which `alias`
/// replaces. Otherwise a file would have several paths.
fn check_alias(r: &Request, target: &[u8], shown: &str) -> Result<(), Step> {
    match r.conf().core.root.stands_for {
        StandsFor::Prefix(len) if target.get(..len) != r.path.get(..len) => Err(invalid(r, shown)),
        _ => Ok(()),
    }
}

fn check_depth(r: &Request) -> Result<(), Step> {
    match (depth_header(r), r.method) {
        (Depth::Infinity | Depth::Absent, _) | (Depth::Zero, Method::Copy) => Ok(()),
        (_, Method::Copy) => Err(refuse(r, 400, "\"Depth\" header must be 0 or infinity")),
        _ => Err(refuse(r, 400, "\"Depth\" header must be infinity")),
    }
}

fn overwrite(r: &Request) -> Result<bool, Step> {
    match r.header_named(b"overwrite") {
        None | Some(b"T" | b"t") => Ok(true),
        Some(b"F" | b"f") => Ok(false),
        Some(other) => {
            let shown = weir_log::Bytes(other);
            let text = format!("client sent invalid \"Overwrite\" header: \"{shown}\"");
            Err(refuse(r, 400, &text))
        }
    }
}

/// Refuses a copy of a resource onto itself, and of a collection into itself.
fn check_overlap(
    r: &Request,
    from: &[u8],
    to: &[u8],
    to_collection: bool,
    shown: &str,
) -> Result<(), Step> {
    let path = weir_log::Bytes(&r.path);
    if from == to {
        let text = "point to the same location";
        let text = format!("both URI \"{path}\" and \"Destination\" URI \"{shown}\" {text}");
        return Err(refuse(r, 403, &text));
    }
    let inside = |outer: &[u8], inner: &[u8]| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    if to_collection && (inside(from, to) || inside(to, from)) {
        let method = weir_log::Bytes(r.method_name());
        let text = format!("\"{path}\" could not be {method}ed to collection \"{shown}\"");
        return Err(refuse(r, 403, &text));
    }
    Ok(())
}

fn merge_slashes(path: &[u8]) -> Vec<u8> {
    let mut out = path.to_vec();
    out.dedup_by(|a, b| *a == b'/' && *b == b'/');
    out
}

fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_are_merged() {
        assert_eq!(merge_slashes(b"//a///b/c//"), b"/a/b/c/");
        assert_eq!(without_slash(b"/a/"), b"/a");
    }
}
