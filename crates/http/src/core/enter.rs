//! A request enters a location: its settings hold from here on, for the request and for its connection.

use weir_proto::http1::{HeaderId, Method};

use crate::counts;
use crate::request::Request;
use crate::request::step::Step;
use crate::request::user_agent::Browser;
use crate::site::core::Conf;
use crate::site::location::LocationId;

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
    enter_limit_except(r);
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

/// `limit_except`: goes on with the settings of the block, if the request's method is not one that it excepts.
fn enter_limit_except(r: &mut Request) {
    if let Some(limit) = &r.conf().core.limit_except
        && !limit.allowed.contains(&r.method)
    {
        r.location = r.site.location(limit.location);
    }
}
