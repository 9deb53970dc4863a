//! Serves files. nginx: ngx_http_static_module.

use weir_engine::{Boxed, Chain, FileKind};
use weir_log::Level;
use weir_proto::http1::Method;
use weir_proto::uri::Escape;

use crate::files::{self, FileError, Opened};
use crate::phases::{Answer, Step};
use crate::request::Request;

/// The maximum size of a file that is read into memory and sent together with the head. A larger
/// file is sent from the page cache.
const SMALL: u64 = 16 * 1024;

/// Content phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    if !matches!(r.method, Method::Get | Method::Head | Method::Post) {
        return Answer::Now(Step::Status(405));
    }
    if r.path.ends_with(b"/") {
        return Answer::Now(Step::Next);
    }
    let mut path = r.event_loop.handle.take_buf(256);
    if let Err(error) = r.conf().core.map_path_into(r, &mut path) {
        return Answer::Now(error.into());
    }
    if let Some((opened, content)) = files::whole(r, &path) {
        r.event_loop.handle.give_buf(path);
        return Answer::Now(match describe(r, &opened) {
            Ok(()) => Step::Respond(content),
            Err(step) => step,
        });
    }
    Answer::Later(Boxed::new(move || open_and_send(r, path)))
}

/// Opens the file of the request's path, for a content handler that sends part of it. Only for GET
/// and HEAD. Directories are left to other handlers. Returns the file and its path.
pub async fn open_file(r: &mut Request) -> Result<(Opened, Vec<u8>), Step> {
    if !matches!(r.method, Method::Get | Method::Head) {
        return Err(Step::Status(405));
    }
    if r.path.ends_with(b"/") {
        return Err(Step::Next);
    }
    // The body is accepted whatever becomes of the file, even for an error page.
    r.invite();
    let mut path = Vec::new();
    r.conf().core.map_path_into(r, &mut path)?;
    match files::open(r, &path).await {
        Ok(opened) if opened.info.kind == FileKind::File => Ok((opened, path)),
        Ok(_) => Err(Step::Next),
        Err(error) => Err(refuse(r, error, &path)),
    }
}

/// Sends a body that is made of parts of a file.
pub async fn send_part(r: &mut Request, opened: &Opened, body: Chain) -> Step {
    if let Err(step) = describe(r, opened) {
        return step;
    }
    let len = body.len();
    r.response.content_length = Some(len);
    if r.conf().core.etag {
        // The entity tag has the length of the part, since the part is a resource of its own.
        r.response.etag = Some(etag(opened.info.modified, len));
    }
    if let Err(step) = r.send_head() {
        return step;
    }
    match r.send_body(body, true).await {
        Ok(()) => Step::Sent,
        Err(_) => Step::Abort,
    }
}

async fn open_and_send(r: &mut Request, path: Vec<u8>) -> Step {
    let opened = match files::open(r, &path).await {
        Ok(opened) => opened,
        Err(error) => return refuse(r, error, &path),
    };
    match opened.info.kind {
        FileKind::File => {}
        FileKind::Directory => return add_slash(r),
        _ => {
            let path = weir_log::Bytes(&path);
            r.log(Level::Crit, format_args!("\"{path}\" is not a regular file"));
            return Step::Status(404);
        }
    }
    if r.method == Method::Post {
        return Step::Status(405);
    }
    if let Err(step) = describe(r, &opened) {
        return step;
    }
    if opened.info.len <= SMALL {
        return match files::content(r, &path, &opened).await {
            Ok(content) => Step::Respond(content),
            Err(error) => {
                let (path, cause) = (weir_log::Bytes(&path), weir_log::Cause(&error));
                r.log(Level::Crit, format_args!("pread() \"{path}\" failed {cause}"));
                Step::Status(500)
            }
        };
    }
    r.event_loop.handle.give_buf(path);
    send(r, opened).await
}

/// Fills in the head for a file.
pub fn describe(r: &mut Request, opened: &Opened) -> Result<(), Step> {
    if r.method == Method::Post {
        return Err(Step::Status(405));
    }
    r.discard_received()?;
    let (len, modified) = (opened.info.len, opened.info.modified);
    r.response.status = 200;
    r.response.content_length = Some(len);
    r.response.last_modified = Some(modified);
    if r.conf().core.etag {
        r.response.etag = Some(etag(modified, len));
    }
    r.set_content_type();
    r.response.allow_ranges = true;
    Ok(())
}

/// Sends the head and the whole file.
pub async fn send(r: &mut Request, opened: Opened) -> Step {
    if let Err(step) = r.send_head() {
        return step;
    }
    let len = opened.info.len;
    match r.send_file(&opened.file, 0, len, true).await {
        Ok(()) => Step::Sent,
        Err(_) => Step::Abort,
    }
}

fn refuse(r: &Request, error: FileError, path: &[u8]) -> Step {
    let (level, status) = match error {
        e if e.is_absent() => (Level::Error, 404),
        e if e.is_denied() || e.is_symlink() => (Level::Error, 403),
        _ => (Level::Crit, 500),
    };
    if status != 404 || r.conf().core.log_not_found {
        error.log(r, level, path);
    }
    Step::Status(status)
}

/// Redirects to the path of a directory with a slash at the end. Relative links of its index need
/// the slash.
fn add_slash(r: &mut Request) -> Step {
    let mut target = Vec::with_capacity(r.path.len() + 1);
    weir_proto::uri::escape(Escape::Uri, &r.path, &mut target);
    target.push(b'/');
    if !r.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&r.args);
    }
    r.response.location = Some(target);
    Step::Status(301)
}

/// nginx's entity tag: modification time and size in hexadecimal.
pub fn etag(modified: i64, len: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(36);
    out.push(b'"');
    if modified < 0 {
        out.push(b'-');
    }
    hex(modified.unsigned_abs(), &mut out);
    out.push(b'-');
    hex(len, &mut out);
    out.push(b'"');
    out
}

fn hex(n: u64, out: &mut Vec<u8>) {
    let digits = (64 - n.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let nibble = (n >> (digit * 4)) as u8 & 0xf;
        out.push(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_nginxs() {
        assert_eq!(etag(0x5f3a_1b2c, 1024), b"\"5f3a1b2c-400\"");
        assert_eq!(etag(0, 0), b"\"0-0\"");
        // One day before 1970.
        assert_eq!(etag(-86_400, 1), b"\"-15180-1\"");
    }
}
