//! Evaluates preconditions: 304 and 412. nginx: ngx_http_not_modified_filter_module.

use weir_proto::Renew;
use weir_proto::conditional::{self, ModifiedSince};
use weir_proto::http1::HeaderId;

use crate::phases::Step;
use crate::request::Request;

/// The header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    if r.response.status != 200 || !r.is_main() || r.response.unconditional {
        return Ok(());
    }
    let (etag, modified) = (r.response.etag.as_deref(), r.response.last_modified);
    let by_etag = |id| r.response.by_standard && r.header(id).is_some();
    if let Some(since) = r.header(HeaderId::IfUnmodifiedSince)
        && !by_etag(HeaderId::IfMatch)
        && !conditional::unmodified(since, modified)
    {
        return Err(failed(r));
    }
    if let Some(list) = r.header(HeaderId::IfMatch)
        && !conditional::etag_matches(list, etag, false)
    {
        return Err(failed(r));
    }
    let how = match r.conf().core.if_modified_since {
        ModifiedSince::Exact if r.response.by_standard => ModifiedSince::Before,
        how => how,
    };
    let since = r.header(HeaderId::IfModifiedSince).filter(|_| !by_etag(HeaderId::IfNoneMatch));
    let none = r.header(HeaderId::IfNoneMatch);
    if since.is_none() && none.is_none() {
        return Ok(());
    }
    if since.is_some_and(|since| conditional::modified(since, modified, how))
        || none.is_some_and(|list| !conditional::etag_matches(list, etag, true))
    {
        return Ok(());
    }
    let response = &mut r.response;
    response.status = 304;
    response.status_line = None;
    response.content_type.clear();
    response.content_length = None;
    response.content_encoding = None;
    response.refuse_ranges();
    Ok(())
}

/// A precondition has failed: nothing of the response is sent.
fn failed(r: &mut Request) -> Step {
    r.response.renew();
    Step::Status(412)
}
