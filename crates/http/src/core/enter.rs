//! Applies the settings of the location that a request enters, to the request and its connection.

use weir_proto::http1::{HeaderId, Method};

use crate::counts;
use crate::request::Request;
use crate::request::step::Step;
use crate::request::user_agent::Browser;
use crate::site::core::Conf;
use crate::site::location::LocationId;

/// Enters the location that was found for the path. Returns the status if the request is refused.
pub fn enter_location(r: &mut Request) -> Option<Step> {
    if r.conf().core.internal && !r.internal {
        return Some(Step::Status(404));
    }
    apply_location(r);
    check_body_size(r)
}

/// Applies the settings of a new location. The rewrite phase follows.
fn apply_location(r: &mut Request) {
    r.chosen_content = None;
    counts::at(r);
    enter_limit_except(r);
    settings_changed(r);
}

/// Checks `client_max_body_size` if the length is known, from the head or because the body was
/// read.
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

/// Enters a named location.
pub fn enter_named(r: &mut Request, id: LocationId) {
    r.location = r.site.location(id);
    apply_location(r);
}

/// Applies settings to the connection, after the location changed or an `if` block was entered.
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

/// `limit_except`: uses the settings of the block, unless it lists the request's method.
fn enter_limit_except(r: &mut Request) {
    if let Some(limit) = &r.conf().core.limit_except
        && !limit.allowed.contains(&r.method)
    {
        r.location = r.site.location(limit.location);
    }
}
