//! `fastcgi_pass` and kin: the server of a location, without scheme and path.

use weir_conf::{Directive, Error, Word};
use weir_log::Level;

use super::GroupId;
use super::driver::{self, Target};
use super::groups::GROUPS;
use super::passing::UpstreamConf;
use super::protocol::Protocol;
use super::url::{Host, Url};
use crate::config::scope::Scope;
use crate::phases::Step;
use crate::request::Request;
use crate::site::content::Content;
use weir_values::Template;

/// A server or a group.
#[derive(Debug, Clone)]
pub enum Pass {
    /// Without variables.
    Group(GroupId),
    /// With variables.
    Computed(Template),
}

/// The group that a directive names.
pub fn refer(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    word: &Word,
    url: Url,
    default_port: u16,
) -> Result<GroupId, Error> {
    // The groups record the reference themselves.
    s.setup.drafts.unnoted(|drafts| GROUPS.draft(drafts).all.refer(d, word, url, default_port))
}

/// No default port.
pub const NO_PORT: u16 = 0;

impl Pass {
    /// Reads the address of directive `d`. `text` replaces its argument, if given.
    pub fn read(s: &mut Scope<'_, '_>, d: &Directive, text: Option<&[u8]>) -> Result<Pass, Error> {
        let word = d.args.first().unwrap_or(&d.name);
        let text = text.unwrap_or(&word.bytes);
        let value = s.setup.template_of(d, word, text)?;
        if value.constant().is_none() {
            return Ok(Pass::Computed(value));
        }
        let url = Url::parse(text, false).map_err(|e| {
            let text = String::from_utf8_lossy(text);
            d.error_at(word, format!("{e} in upstream \"{text}\""))
        })?;
        refer(s, d, word, url, NO_PORT).map(Pass::Group)
    }

    /// The target of this request.
    pub fn target(&self, r: &mut Request, by: By) -> Result<Target, Step> {
        match self {
            Pass::Group(id) => Ok(Target::Configured(*id)),
            Pass::Computed(address) => {
                let text = address.eval(r).into_owned();
                parsed(r, &text, by)
            }
        }
    }
}

/// The author of the words in an address with variables: the administrator or the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The administrator, who may be wrong but means no harm.
    Configuration,
    /// The client. It may not name Unix sockets, and its invalid addresses are logged as `info`.
    Client,
}

/// The target of an address that variables gave.
pub fn parsed(r: &Request, text: &[u8], by: By) -> Result<Target, Step> {
    let shown = String::from_utf8_lossy(text);
    let url = Url::parse(text, false).map_err(|e| {
        let level = if by == By::Client { Level::Info } else { Level::Error };
        r.log(level, format_args!("{e} in upstream \"{shown}\""));
        Step::Status(500)
    })?;
    let local = by == By::Configuration && matches!(url.address, Some(Host::Unix(_)));
    let known = || GROUPS.of(&r.site.main_confs).find(&url.host, None, NO_PORT).is_some();
    if url.port.is_none() && !local && !known() {
        r.log(Level::Error, format_args!("no port in upstream \"{shown}\""));
        return Err(Step::Status(500));
    }
    Ok(Target::Url(Box::new(url), NO_PORT))
}

/// The location passes its requests on.
pub fn handle(s: &mut Scope<'_, '_>, content: Content) {
    s.answer_with(content);
    s.place.auto_redirect |= s.place.name.ends_with(b"/");
}

/// Reads the client's body, where it is not passed as it comes, and passes the request on.
pub async fn serve<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    target: Target,
    protocol: &mut P,
) -> Step {
    if let Err(step) = driver::read_body(r, protocol).await {
        return step;
    }
    driver::serve(r, passing, target, protocol).await
}
