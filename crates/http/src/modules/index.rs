//! Redirects a request for a directory to its index file. nginx: ngx_http_index_module.

use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::http1::Method;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::files::{self, FileError};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::{Key, Settings};
use weir_values::Template;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    names: Vec<Template>,
}

impl Default for Conf {
    fn default() -> Self {
        Conf { names: vec![Template::text(b"index.html")] }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[Directive {
    name: "index",
    help: "The index files of a directory. The first one that exists is used.",
    set: Set::Simple(set),
}];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_index", directives: DIRECTIVES, ..Module::NEW };

fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let mut names = match s.first(d) {
        true => Vec::new(),
        false => CONF.of(&s.location).names.clone(),
    };
    for (i, word) in d.args.iter().enumerate() {
        if word.bytes.is_empty() {
            return Err(d.error_at(word, "index \"\" in \"index\" directive is invalid"));
        }
        if word.bytes.starts_with(b"/") && i + 1 < d.args.len() {
            let text = "only the last index in \"index\" directive should be absolute";
            s.setup.warnings.push(d.warning(text).mark(word.pos));
        }
        names.push(s.setup.template(d, word)?);
    }
    CONF.change(&mut s.location).names = names;
    Ok(())
}

/// Content phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let method = matches!(r.method, Method::Get | Method::Head | Method::Post);
    if !r.path.ends_with(b"/") || !method {
        return Answer::Now(Step::Next);
    }
    Answer::Later(Boxed::new(move || search(r)))
}

async fn search(r: &mut Request) -> Step {
    let conf = r.conf();
    let mut directory = Vec::new();
    let mut directory_tested = false;
    for name in &CONF.of(conf).names {
        let name = name.eval(r).into_owned();
        if name.starts_with(b"/") {
            return redirect(r, name);
        }
        if directory.is_empty()
            && let Err(error) = conf.core.map_path_into(r, &mut directory)
        {
            return error.into();
        }
        let path = [directory.as_slice(), &name].concat();
        // A redirect there would be refused, which tells that the file exists.
        if files::climbs(r, &path, &conf.core.root.value) {
            continue;
        }
        let error = match files::stat(r, &path).await {
            Ok(_) => {
                let target = [r.path.as_slice(), &name].concat();
                return redirect(r, target);
            }
            Err(error) => error,
        };
        if error.is_symlink() {
            return Step::Status(403);
        }
        if error.is_denied() || (error.is_absent() && !error.is_missing_name()) {
            return refuse(r, &path, error);
        }
        if !directory_tested {
            if let Some(end) = test_directory(r, &directory, &path).await {
                return end;
            }
            directory_tested = true;
        }
        if !error.is_missing_name() {
            error.log(r, Level::Crit, &path);
            return Step::Status(500);
        }
    }
    Step::Next
}

/// Redirects internally and keeps the query string.
fn redirect(r: &mut Request, path: Vec<u8>) -> Step {
    let args = std::mem::take(&mut r.args);
    r.redirect_to_parts(&path, args)
}

/// Tests the directory itself. If it is missing, the status is 404 instead of 403.
async fn test_directory(r: &mut Request, directory: &[u8], path: &[u8]) -> Option<Step> {
    let name = directory.strip_suffix(b"/").filter(|name| !name.is_empty()).unwrap_or(directory);
    match files::stat(r, name).await {
        Ok(found) if found.is_directory() => None,
        Ok(_) => {
            let name = weir_log::Bytes(name);
            r.log(Level::Alert, format_args!("\"{name}\" is not a directory"));
            Some(Step::Status(500))
        }
        Err(error) if error.is_symlink() => Some(Step::Status(403)),
        Err(error) if error.is_missing_name() => Some(refuse(r, path, error)),
        Err(error) if error.is_denied() => None,
        Err(error) => {
            error.log(r, Level::Crit, name);
            Some(Step::Status(500))
        }
    }
}

fn refuse(r: &Request, path: &[u8], error: FileError) -> Step {
    let path = weir_log::Bytes(path);
    if error.is_denied() {
        r.log(Level::Error, format_args!("\"{path}\" is forbidden {error}"));
        return Step::Status(403);
    }
    if r.conf().core.log_not_found {
        r.log(Level::Error, format_args!("\"{path}\" is not found {error}"));
    }
    Step::Status(404)
}
