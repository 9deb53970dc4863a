//! `error_page`: finds the page of the configuration for a status.

use weir_proto::http1::Method;

use crate::phases::Step;
use crate::request::Request;
use crate::site::core::Tell;

/// The step of `error_page` for a request that failed with this status, if there is one.
pub fn error_page(r: &mut Request, status: u16) -> Option<Step> {
    let pages = &r.conf().core.error_pages;
    let found = pages.iter().find(|p| p.status == status)?;
    match found.tell {
        Tell::Same => {}
        Tell::This(code) => r.error_status = code,
        Tell::Page => r.error_status = 0,
    }
    if !matches!(found.tell, Tell::Page | Tell::This(200)) {
        // The page does not need the client's body.
        r.body.expects_continue = false;
    }
    let target = found.page.eval(r).into_owned();
    Some(match target.first() {
        Some(b'/') => {
            if r.method != Method::Head {
                r.method = Method::Get;
            }
            r.response.forget_body();
            r.redirect_to(&target)
        }
        Some(b'@') => {
            r.response.forget_body();
            r.redirect_to_named(&target)
        }
        _ => elsewhere(r, found.tell, target),
    })
}

/// Whether the location has an `error_page` for this status.
pub fn has_error_page(r: &Request, status: u16) -> bool {
    r.conf().core.error_pages.iter().any(|p| p.status == status)
}

/// Redirects the client to a page at another URL.
fn elsewhere(r: &mut Request, tell: Tell, target: Vec<u8>) -> Step {
    let code = match tell {
        Tell::This(code @ (301 | 302 | 303 | 307 | 308)) => code,
        _ => 302,
    };
    r.response.location = Some(target);
    crate::answer::special::own_page(r, code)
}
