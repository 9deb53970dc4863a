//! Sends ranges of a response: 206 and 416. nginx: ngx_http_range_filter_module.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_proto::conditional;
use weir_proto::http1::{HeaderId, Version};
use weir_proto::range::{self, ByteRange, Ranges};

use crate::answer::cutter::{Cutter, Multipart, content_range};
use crate::phases::Step;
use crate::request::Request;
use weir_values::Subject;

/// The header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let response = &r.response;
    let Some(length) = response.content_length else { return Ok(()) };
    if !(r.is_main() || response.is_slice)
        || !response.allow_ranges
        || response.status != 200
        || r.version < Version::Http10
    {
        return Ok(());
    }
    let max = r.conf().core.max_ranges;
    if max == Some(0) {
        return Ok(());
    }
    let max = if response.single_range { Some(1) } else { max };
    let mut ranges = Vec::new();
    match wanted(r, length, max, &mut ranges) {
        Ranges::Partial => partial(r, length, ranges),
        Ranges::NotSatisfiable => {
            r.response.headers.set(b"Content-Range", &content_range(None, length));
            r.response.content_length = None;
            return Err(Step::Status(416));
        }
        Ranges::Whole => r.response.headers.add(b"Accept-Ranges", b"bytes"),
    }
    Ok(())
}

fn wanted(r: &Request, length: u64, max: Option<u64>, out: &mut Vec<ByteRange>) -> Ranges {
    let Some(range) = r.header(HeaderId::Range) else { return Ranges::Whole };
    let (etag, modified) = (r.response.etag.as_deref(), r.response.last_modified);
    if let Some(condition) = r.header(HeaderId::IfRange)
        && !conditional::range_applies(condition, etag, modified)
    {
        return Ranges::Whole;
    }
    range::parse(range, length, max.and_then(|n| usize::try_from(n).ok()), out)
}

fn partial(r: &mut Request, length: u64, ranges: Vec<ByteRange>) {
    r.response.status = 206;
    r.response.status_line = None;
    let offset = r.response.content_offset;
    let multipart = match ranges.as_slice() {
        [only] => {
            r.response.headers.set(b"Content-Range", &content_range(Some(*only), length));
            r.response.content_length = Some(only.end - only.start);
            r.response.content_offset = only.start;
            None
        }
        several => {
            let multipart = multipart(r, length);
            r.response.content_length = Some(multipart.total(several));
            r.response.headers.remove(b"Content-Range");
            Some(multipart)
        }
    };
    r.output.cut(Cutter::new(ranges, multipart, offset));
}

/// Moves the response's content type to the parts and sets `multipart/byteranges`.
fn multipart(r: &mut Request, length: u64) -> Multipart {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let boundary = format!("{:020}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut content_type = Vec::new();
    if !r.response.content_type.is_empty() {
        content_type.extend_from_slice(b"Content-Type: ");
        let start = content_type.len();
        r.response.write_content_type(&mut content_type);
        r.within_line(&mut content_type, start);
        content_type.extend_from_slice(b"\r\n");
    }
    r.response.say_type(format!("multipart/byteranges; boundary={boundary}").as_bytes());
    Multipart { boundary, content_type, length }
}
