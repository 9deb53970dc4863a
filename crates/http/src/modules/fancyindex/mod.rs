//! Lists a directory's files as a sortable table between the site's own header and footer. Like the
//! module ngx-fancyindex.

use std::sync::Arc;

use bytes::Bytes;
use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;
use weir_log::{Cause, Level};
use weir_proto::http1::Method;
use weir_values::Regex;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::files::directory::{self, DirectoryEntry, EntryFilter};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod page;

use page::{Column, Look, Order};

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    enabled: bool,
    header: Option<PagePart>,
    footer: Option<PagePart>,
    order: Order,
    look: Look,
    filter: EntryFilter,
    /// Files whose names match are not listed.
    ignore: Vec<Arc<Regex>>,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            enabled: false,
            header: None,
            footer: None,
            order: Order::default(),
            look: Look::default(),
            filter: EntryFilter::USUAL,
            ignore: Vec::new(),
        }
    }
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let conf = CONF.of(&s.location);
    if conf.enabled && !conf.look.path && conf.header.is_none() {
        let text = "\"fancyindex_show_path off\" has no effect without \"fancyindex_header\"";
        s.setup.warnings.push(Error::warn(text.to_owned()));
    }
    Ok(())
}

/// The site's own header or footer.
#[derive(Debug, Clone)]
enum PagePart {
    /// The URI of a subrequest whose answer is inserted.
    Path(Vec<u8>),
    /// The contents of a file, read at start-up.
    Text(Bytes),
}

const DIRECTIVES: &[Directive] = &[
    setting!(
        "fancyindex",
        CONF.enabled,
        Line::flag,
        "Lists directories without an index as a table."
    ),
    setting!(
        "fancyindex_case_sensitive",
        CONF.order.cased,
        Line::flag,
        "Whether names are sorted by case."
    ),
    setting!("fancyindex_css_href", CONF.look.css, text, "A style sheet for the list."),
    setting!(
        "fancyindex_default_sort",
        CONF.order.by,
        sort,
        "How a list is sorted by default: name, size or date, with _desc the other way round."
    ),
    setting!(
        "fancyindex_directories_first",
        CONF.order.directories_first,
        Line::flag,
        "Whether directories are listed before files."
    ),
    setting!(
        "fancyindex_exact_size",
        CONF.look.exact_size,
        Line::flag,
        "Whether sizes are in bytes."
    ),
    Directive {
        name: "fancyindex_footer",
        help: "The footer of the list: a URI, or with `local` a file.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            let part = part(s, d)?;
            CONF.change(&mut s.location).footer = part;
            Ok(())
        }),
    },
    Directive {
        name: "fancyindex_header",
        help: "The header of the list: a URI, or with `local` a file.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            let part = part(s, d)?;
            CONF.change(&mut s.location).header = part;
            Ok(())
        }),
    },
    setting!(
        "fancyindex_hide_parent_dir",
        CONF.look.hide_parent,
        Line::flag,
        "Whether the parent directory is omitted."
    ),
    setting!(
        "fancyindex_hide_symlinks",
        CONF.filter.links,
        |d: &Line| d.flag().map(|hide| !hide),
        "Whether symbolic links are omitted."
    ),
    Directive {
        name: "fancyindex_ignore",
        help: "Regular expressions for names that are omitted.",
        set: Set::Simple(ignore),
    },
    setting!(
        "fancyindex_localtime",
        CONF.look.localtime,
        Line::flag,
        "Whether times are local ones."
    ),
    setting!(
        "fancyindex_name_length",
        CONF.look.name_length,
        |d: &Line| d.number().map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        "The maximum number of characters of a name."
    ),
    setting!(
        "fancyindex_show_dotfiles",
        CONF.filter.dotfiles,
        Line::flag,
        "Whether names that begin with a dot are shown."
    ),
    setting!(
        "fancyindex_show_path",
        CONF.look.path,
        Line::flag,
        "Whether the directory's path is shown below the site's own header."
    ),
    setting!(
        "fancyindex_time_format",
        CONF.look.time_format,
        text,
        "The format of times, as for strftime."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_fancyindex", directives: DIRECTIVES, finish, ..Module::NEW };

fn text(d: &Line) -> Result<Vec<u8>, Error> {
    Ok(d.args.first().map_or_else(Vec::new, |word| word.bytes.clone()))
}

fn sort(d: &Line) -> Result<(Column, bool), Error> {
    d.choice(&[
        ("name", (Column::Name, false)),
        ("size", (Column::Size, false)),
        ("date", (Column::Date, false)),
        ("name_desc", (Column::Name, true)),
        ("size_desc", (Column::Size, true)),
        ("date_desc", (Column::Date, true)),
    ])
}

/// `PATH [subrequest | local]`
fn part(s: &mut Scope<'_, '_>, d: &Line) -> Result<Option<PagePart>, Error> {
    let Some(path) = d.args.first() else { return Ok(None) };
    match d.args.get(1) {
        None => {}
        Some(kind) if kind.is("subrequest") => {}
        Some(kind) if kind.is("local") => {
            let file = s.setup.inputs.conf_prefix.join(path.lossy().as_ref());
            let read = weir_conf::read_file(&file);
            let read = read.map_err(|e| {
                d.error_at(path, format!("cannot open file \"{}\" {}", file.display(), Cause(&e)))
            })?;
            return Ok(Some(PagePart::Text(Bytes::from(read))));
        }
        Some(kind) => return Err(d.invalid("header/footer kind", kind)),
    }
    Ok((!path.bytes.is_empty()).then(|| PagePart::Path(path.bytes.clone())))
}

fn ignore(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let read = |word| s.setup.regex(d, word, &word.bytes, true).map(Arc::new);
    let more = d.args.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let list = &mut CONF.change(&mut s.location).ignore;
    if first {
        list.clear();
    }
    list.extend(more);
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).enabled
}

/// Content phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let method = matches!(r.method, Method::Get | Method::Head);
    if !method || !r.path.ends_with(b"/") {
        return Answer::Now(Step::Next);
    }
    Answer::Later(Boxed::new(move || list(r)))
}

async fn list(r: &mut Request) -> Step {
    let path = match directory::requested_path(r) {
        Ok(path) => path,
        Err(end) => return end,
    };
    let conf = CONF.of(r.conf()).clone();
    let mut entries = match directory::entries(r, &path, conf.filter).await {
        Ok(entries) => entries,
        Err(end) => return end,
    };
    let header = own(r, conf.header.as_ref()).await;
    let footer = own(r, conf.footer.as_ref()).await;
    let asked = page::asked(&r.args);
    let offset = if conf.look.localtime { r.event_loop.local_time().1 } else { 0 };
    let (count, path) = (entries.len(), r.path.clone());
    let write = move || {
        entries.retain(|entry| !is_ignored(&conf, entry));
        let column = asked.unwrap_or(conf.order.by);
        conf.order.sort(&mut entries, column);
        page::table(
            &path,
            &entries,
            &conf.look,
            offset,
            asked,
            header.as_deref(),
            footer.as_deref(),
        )
    };
    match directory::run_for(r, count, write).await {
        Ok(body) => {
            r.response.status = 200;
            r.response.set_type(b"text/html");
            Step::Respond(Bytes::from(body))
        }
        Err(end) => end,
    }
}

/// A file is ignored even if a pattern exceeds its match limit, so that no name leaks.
fn is_ignored(conf: &Conf, entry: &DirectoryEntry) -> bool {
    conf.ignore.iter().any(|regex| regex.may_match(&entry.name))
}

/// The text of the site's own header or footer. `None` if there is none, or if its subrequest
/// fails.
async fn own(r: &mut Request, part: Option<&PagePart>) -> Option<Vec<u8>> {
    let path = match part? {
        PagePart::Text(text) => return Some(text.to_vec()),
        PagePart::Path(path) => path,
    };
    let (path, args) = match path.iter().position(|b| *b == b'?') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (path.as_slice(), &b""[..]),
    };
    let sub = Box::pin(r.capture(path, args)?.run()).await;
    if sub.response.status != 200 || !sub.capture_is_whole() {
        let (path, status) = (weir_log::Bytes(path), sub.response.status);
        r.log(Level::Error, format_args!("fancyindex: \"{path}\" answers with status {status}"));
        return None;
    }
    Some(sub.captured_body().to_vec())
}
