//! `try_files`: serves the first file that exists, or a fallback. nginx: ngx_http_try_files_module.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, values};
use weir_engine::Boxed;

use crate::config::scope::Scope;
use crate::files;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::core::{Candidate, Fallback, Root, StandsFor, TryFiles};
use crate::site::settings::LocationConf;

/// `try_files file ... uri | =code`
pub fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some((last, words)) = d.args.split_last() else { return Ok(()) };
    let mut names = Vec::new();
    for word in words {
        let plain = word.bytes.strip_suffix(b"/");
        let name = s.setup.template_of(d, word, plain.unwrap_or(&word.bytes))?;
        names.push(Candidate { name, directory: plain.is_some() });
    }
    let fallback = match last.bytes.strip_prefix(b"=") {
        Some(code) => {
            let code = values::number(code).filter(|n| *n <= 999);
            let bad = || d.invalid("code", last);
            Fallback::Status(code.ok_or_else(bad)? as u16)
        }
        None => Fallback::Path(s.setup.template(d, last)?),
    };
    let found = TryFiles { names, fallback };
    Scope::change(&mut s.location.core).try_files = Some(Arc::new(found));
    Ok(())
}

/// Whether a location has `try_files`.
pub fn wanted(conf: &LocationConf) -> bool {
    conf.core.try_files.is_some()
}

/// Precontent phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    match &r.conf().core.try_files {
        Some(wanted) => Answer::Later(Boxed::new(move || search(r, wanted))),
        None => Answer::Now(Step::Next),
    }
}

async fn search(r: &mut Request, wanted: &TryFiles) -> Step {
    let core = &r.conf().core;
    let root = match core.root_path(r) {
        Ok(root) => root,
        Err(error) => return error.into(),
    };
    for candidate in &wanted.names {
        let mut name = Vec::new();
        candidate.name.eval_into(r, &mut name);
        if candidate.name.constant().is_none() {
            cut_alias(&core.root, r, &mut name);
        }
        let path = [root.as_slice(), &name].concat();
        if files::climbs(r, &path, &core.root.value) {
            continue;
        }
        match files::stat(r, &path).await {
            Ok(info) if info.is_directory() == candidate.directory => {
                found(&core.root, r, &name, candidate.directory);
                return Step::Next;
            }
            Ok(_) => {}
            Err(error) if error.is_absent() => {}
            Err(error) => error.log(r, weir_log::Level::Crit, &path),
        }
    }
    match &wanted.fallback {
        Fallback::Status(status) => Step::Status(*status),
        Fallback::Path(target) => {
            let varies = target.constant().is_none();
            let mut target = target.eval(r).into_owned();
            if varies {
                cut_alias(&core.root, r, &mut target);
            }
            match target.first() {
                Some(b'@') => r.redirect_to_named(&target),
                _ => {
                    let step = r.redirect_to(&target);
                    r.args_set = true;
                    step
                }
            }
        }
    }
}

/// With `alias`, the location's name is cut off a name that begins with it.
fn cut_alias(root: &Root, r: &Request, name: &mut Vec<u8>) {
    if let StandsFor::Prefix(len) = root.stands_for
        && let Some(prefix) = r.path.get(..len)
        && name.starts_with(prefix)
    {
        name.drain(..len);
    }
}

/// Continues with the path of the file or directory that was found.
fn found(root: &Root, r: &mut Request, name: &[u8], directory: bool) {
    match root.stands_for {
        StandsFor::Nothing => r.set_path(name),
        StandsFor::Prefix(len) => {
            r.path.truncate(len);
            r.path.extend_from_slice(name);
        }
        StandsFor::Match if directory => {}
        StandsFor::Match => {
            r.set_path(name);
            r.path_below_alias = true;
        }
    }
}
