//! Makes the client's head from the header lines of a server's answer.

use weir_log::Level;
use weir_proto::Span;
use weir_proto::http1::{HeaderId, HeaderLine, Version};

use super::fault::Fault;
use super::passing::UpstreamConf;
use super::protocol::{Answer, Protocol};
use crate::answer::headers::Place;
use crate::carrier::Interim;
use crate::phases::Step;
use crate::request::Request;

/// Instructions to this server in `X-Accel-` headers.
#[derive(Debug, Default)]
pub struct Wishes {
    /// `X-Accel-Redirect`
    pub redirect: Option<Vec<u8>>,
    /// `X-Accel-Buffering`
    pub buffering: Option<bool>,
}

/// A header line of the server's answer.
struct TakenHeader<'a> {
    id: HeaderId,
    name: &'a [u8],
    value: &'a [u8],
}

/// Reads the `X-Accel-` headers of the answer.
pub fn wishes(r: &mut Request, passing: &UpstreamConf) -> Wishes {
    let mut wishes = Wishes::default();
    let context = &r.contexts.upstream;
    let mut rate = None;
    for header in &context.headers {
        if passing.ignored.has(header.id) && header.id != HeaderId::Other {
            continue;
        }
        let value = header.value.of(&context.head);
        match header.id {
            HeaderId::XAccelRedirect => {
                wishes.redirect.get_or_insert_with(|| value.to_vec());
            }
            HeaderId::XAccelBuffering if value.eq_ignore_ascii_case(b"yes") => {
                wishes.buffering = Some(true);
            }
            HeaderId::XAccelBuffering if value.eq_ignore_ascii_case(b"no") => {
                wishes.buffering = Some(false);
            }
            HeaderId::XAccelCharset => r.response.override_charset = Some(value.to_vec()),
            HeaderId::XAccelLimitRate => rate = rate.or(weir_conf::values::number(value)),
            _ => {}
        }
    }
    if let Some(rate) = rate {
        r.limit_rate = Some(rate);
    }
    wishes
}

/// `X-Accel-Redirect`: redirects internally, with the few headers that are kept.
pub fn redirect<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    protocol: &P,
    target: &[u8],
) -> Step {
    let stays = |id| {
        use HeaderId::*;
        matches!(
            id,
            ContentType | SetCookie | ContentDisposition | CacheControl | Expires | AcceptRanges
        )
    };
    each(r, |r, line| {
        if stays(line.id) {
            copy(r, passing, protocol, line);
        }
    });
    if target.first() == Some(&b'@') {
        return r.redirect_to_named_while(target, reading(r));
    }
    let Ok(uri) = weir_proto::uri::is_unsafe(target) else {
        let target = weir_log::Bytes(target).to_string();
        r.log(
            Level::Error,
            format_args!(
                "unsafe URI \"{target}\" was detected while reading response header from upstream"
            ),
        );
        return Step::Status(404);
    };
    r.ask_with_get();
    let has_args = uri.args.is_some();
    let step = r.redirect_to_parts_while(&uri.path, uri.args.unwrap_or_default(), reading(r));
    r.args_set = has_args;
    step
}

/// Fills in the client's head.
pub fn fill<P: Protocol>(r: &mut Request, passing: &UpstreamConf, protocol: &P, answer: &Answer) {
    r.response.status = answer.status;
    if let Some(line) = answer.status_line {
        let line = line.of(&r.contexts.upstream.head).to_vec();
        r.response.status_line = Some(line);
    }
    each(r, |r, line| {
        if !passing.hidden.contains(line.id, line.name) {
            copy(r, passing, protocol, line);
        }
    });
    // If the server's own are passed on, this server adds none.
    if protocol.names_itself() && !passing.hidden.has(HeaderId::Server) {
        r.response.server.get_or_insert_default();
    }
    if protocol.names_itself() && !passing.hidden.has(HeaderId::Date) {
        r.response.date.get_or_insert_default();
    }
    r.response.content_length = answer.length;
    r.response.by_standard = passing.caching.keeps_standard();
    r.response.unconditional = !(r.contexts.upstream.cached || withholds_conditions(r, passing));
    if passing.force_ranges {
        // Multiple ranges are served only from the cache.
        let single = !r.contexts.upstream.cached;
        (r.response.allow_ranges, r.response.single_range) = (true, single);
    }
}

/// Whether the client's conditions and range were not passed to the server, so that this server
/// applies them. As in nginx, only if the answer may be stored.
fn withholds_conditions(r: &Request, passing: &UpstreamConf) -> bool {
    let standard = passing.caching.keeps_standard() && r.contexts.upstream.cache.is_some();
    r.is_cacheable() || standard
}

/// Drops and logs duplicates of header lines that may occur only once. The first counts.
pub fn forget_duplicates(r: &mut Request) {
    let mut seen = 0u64;
    let again = r.contexts.upstream.headers.iter().any(|header| {
        let bit = single(header.id);
        let again = seen & bit != 0;
        seen |= bit;
        again
    });
    if !again {
        return;
    }
    let headers = std::mem::take(&mut r.contexts.upstream.headers);
    let mut kept: Vec<HeaderLine> = Vec::with_capacity(headers.len());
    for header in headers {
        let first = match single(header.id) {
            0 => None,
            _ => kept.iter().find(|first| first.id == header.id),
        };
        match first {
            Some(first) => duplicate(r, &header, first),
            None => kept.push(header),
        }
    }
    r.contexts.upstream.headers = kept;
}

/// A bit for each header that may occur only once; 0 for others.
fn single(id: HeaderId) -> u64 {
    use HeaderId::*;
    match id {
        Status | ContentType | Date | ETag | Server | Location | Refresh | LastModified
        | Expires | XAccelExpires | XAccelRedirect | XAccelLimitRate => {
            1u64.checked_shl(id as u32).unwrap_or(0)
        }
        _ => 0,
    }
}

/// The end of a log line about a head. Empty for a stored head, which was not read from a server.
pub fn reading(r: &Request) -> &'static str {
    if r.contexts.upstream.cached { "" } else { " while reading response header from upstream" }
}

fn duplicate(r: &Request, header: &HeaderLine, first: &HeaderLine) {
    let head = &r.contexts.upstream.head;
    let text = |span: Span| weir_log::Bytes(span.of(head));
    let doing = reading(r);
    r.log(
        Level::Warn,
        format_args!(
            "upstream sent duplicate header line: \"{}: {}\", \
             previous value: \"{}: {}\", ignored{doing}",
            text(header.name),
            text(header.value),
            text(first.name),
            text(first.value)
        ),
    );
}

/// Calls `f` with each header line. `f` may change the request.
fn each(r: &mut Request, mut f: impl FnMut(&mut Request, &TakenHeader<'_>)) {
    let mut head = std::mem::take(&mut r.contexts.upstream.head);
    let mut headers = std::mem::take(&mut r.contexts.upstream.headers);
    for at in 0..headers.len() {
        let Some(header) = headers.get(at) else { break };
        let (id, name, value) = (header.id, header.name.of(&head), header.value.of(&head));
        if !may_be_rewritten(id) {
            f(r, &TakenHeader { id, name, value });
            continue;
        }
        let (name, value) = (name.to_vec(), value.to_vec());
        (r.contexts.upstream.head, r.contexts.upstream.headers) = (head, headers);
        f(r, &TakenHeader { id, name: &name, value: &value });
        head = std::mem::take(&mut r.contexts.upstream.head);
        headers = std::mem::take(&mut r.contexts.upstream.headers);
    }
    (r.contexts.upstream.head, r.contexts.upstream.headers) = (head, headers);
}

/// Whether `proxy_redirect`, `proxy_cookie_path` and kin may rewrite the line, with variables that
/// may read any other line.
fn may_be_rewritten(id: HeaderId) -> bool {
    matches!(id, HeaderId::Location | HeaderId::Refresh | HeaderId::SetCookie)
}

fn copy<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    protocol: &P,
    line: &TakenHeader<'_>,
) {
    let value = line.value;
    match line.id {
        HeaderId::Connection
        | HeaderId::KeepAlive
        | HeaderId::TransferEncoding
        | HeaderId::ContentLength => {}
        HeaderId::ContentType => r.response.say_type(value),
        HeaderId::Date | HeaderId::Server => {
            let (own, place) = match line.id {
                HeaderId::Date => (&mut r.response.date, Place::Date),
                _ => (&mut r.response.server, Place::Server),
            };
            *own = Some(value.to_vec());
            r.response.headers.mark(place, line.name);
            if value.is_empty() {
                // In `own`, an empty value would mean that there is no line.
                r.response.headers.add(line.name, value);
            }
        }
        HeaderId::ETag => {
            r.response.etag = Some(value.to_vec());
            r.response.headers.mark(Place::ETag, line.name);
        }
        // Several lines form one list.
        HeaderId::ContentEncoding => {
            match &mut r.response.content_encoding {
                Some(list) if !list.is_empty() => list.extend_from_slice(&[b", ", value].concat()),
                coding => *coding = Some(value.to_vec()),
            }
            r.response.headers.mark(Place::ContentEncoding, line.name);
        }
        HeaderId::LastModified => r.response.add_last_modified(line.name, line.value),
        HeaderId::AcceptRanges if passing.force_ranges => {}
        HeaderId::AcceptRanges if r.contexts.upstream.cached => r.response.allow_ranges = true,
        HeaderId::AcceptRanges if withholds_conditions(r, passing) => {
            (r.response.allow_ranges, r.response.single_range) = (true, true);
        }
        HeaderId::Location => match protocol.redirect(r, value, 0) {
            None if value.first() == Some(&b'/') => r.response.headers.add(line.name, value),
            new => {
                r.response.location = Some(new.unwrap_or_else(|| value.to_vec()));
                r.response.headers.mark(Place::Location, line.name);
            }
        },
        HeaderId::Refresh => {
            let new = find_url(value).and_then(|at| protocol.redirect(r, value, at));
            r.response.headers.add(line.name, new.as_deref().unwrap_or(value));
        }
        HeaderId::SetCookie => {
            let new = protocol.cookie(r, value);
            r.response.headers.add(line.name, new.as_deref().unwrap_or(value));
        }
        _ => r.response.headers.add(line.name, value),
    }
}

/// The offset of the URL in a `Refresh` header.
fn find_url(value: &[u8]) -> Option<usize> {
    value.windows(4).position(|w| w.eq_ignore_ascii_case(b"url=")).map(|at| at + 4)
}

/// Passes an interim answer to the client: 103 as configured by `early_hints`, and under the rules
/// of RFC 9111 all but 100, which concerns only the two servers (RFC 9110, section 15.2).
pub async fn interim(
    r: &mut Request,
    passing: &UpstreamConf,
    status: u16,
    headers: &[HeaderLine],
    buf: &[u8],
) -> Result<(), Fault> {
    let what = match status {
        103 => Interim::EarlyHints,
        status => Interim::Other(status),
    };
    let by_standard = passing.caching.keeps_standard() && r.conf().core.early_hints.is_empty();
    let passes = match status {
        100 => false,
        103 if !by_standard => wants_hints(r),
        _ => by_standard && r.is_main() && r.version >= Version::Http11,
    };
    // After the head was sent, an interim answer would be read as a part of the body. This happens
    // if the server was asked for the rest of an answer.
    if !passes || r.response.sent {
        return Ok(());
    }
    let passed =
        |h: &&HeaderLine| !passing.hidden.contains(h.id, h.name.of(buf)) && !is_hop_by_hop(h.id);
    let mut fields = headers.iter().filter(passed).peekable();
    if status == 103 && fields.peek().is_none() {
        return Ok(());
    }
    let fields = fields.map(|h| (h.name.of(buf), h.value.of(buf)));
    r.send_interim(what, fields).await.map_err(|_| Fault::ClientLeft)
}

/// Whether a value of `early_hints` is neither empty nor `0`.
fn wants_hints(r: &mut Request) -> bool {
    let conf = r.conf();
    r.is_main()
        && r.version >= Version::Http11
        && conf.core.early_hints.iter().any(|t| !matches!(&*t.eval(r), b"" | b"0"))
}

/// Whether a field is hop-by-hop or about framing.
pub fn is_hop_by_hop(id: HeaderId) -> bool {
    use HeaderId::*;
    matches!(
        id,
        Connection | KeepAlive | ProxyConnection | Upgrade | TransferEncoding | ContentLength
    )
}
