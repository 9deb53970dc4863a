//! `limit_except`: settings for all but some methods, mostly access rules.

use weir_conf::{Contexts, Directive as Line, Error};
use weir_proto::http1::Method;

use super::blocks;
use crate::config::place::Place;
use crate::config::scope::Scope;
use crate::site::core::LimitExcept;
use crate::site::location::Kind;

/// `limit_except METHOD ... { }`
pub fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    if s.location.core.limit_except.is_some() {
        return Err(d.problem("is duplicate"));
    }
    let mut allowed = Vec::new();
    for word in &d.args {
        let method = Method::from_name(&word.bytes.to_ascii_uppercase());
        if matches!(method, Method::Other | Method::Connect) {
            return Err(d.invalid("method", word));
        }
        allowed.push(method);
    }
    if allowed.contains(&Method::Get) {
        allowed.push(Method::Head);
    }
    let location = s.setup.reserve();
    let place = Place::new(&s.place.name, Kind::LimitExcept);
    blocks::open_reserved(s, d, place, Contexts::LIMIT_EXCEPT, location)?;
    let conf = Scope::change(&mut s.location.core);
    conf.limit_except = Some(LimitExcept { allowed, location });
    Ok(())
}
