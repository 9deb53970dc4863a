//! Reads the `http` block with the modules' tables of directives. The result is a [`Site`].

pub mod known;
pub mod module;
pub mod path_names;
pub mod place;
pub mod scope;
pub mod table;
pub mod types;
pub mod zone_names;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use weir_conf::{Contexts, Directive, DirectiveBody, Error, Pos, Word, values};
use weir_log::{Log, OpenLogs};

use crate::config::known::ServerReuse;
use crate::config::module::Modules;
use crate::config::path_names::PathNames;
use crate::config::place::Place;
use crate::config::scope::Scope;
use crate::config::zone_names::ZoneNames;
use crate::files::temp_file::{DIGITS, TempPath};
use crate::listen::ListenLine;
use crate::names::ServerId;
use crate::regex::Regex;
use crate::request::Request;
use crate::site::core::Root;
use crate::site::location::{Kind, Location, LocationId};
use crate::site::main_conf::MainDrafts;
use crate::site::server::ServerConf;
use crate::site::settings::LocationConf;
use crate::site::{Listening, Server, Site, SiteNumber};
use crate::variables::{VariableId, Variables};
use weir_upstream::config::InheritedSettings;
pub use weir_values::Inputs;
use weir_values::escape::{is_name, one_line};
use weir_values::log::LogTarget;
use weir_values::{Reading, Template};
use weir_zone::Declarations;

/// The state that is shared while the `http` block is read.
pub struct Setup<'a> {
    /// All modules.
    pub modules: &'static Modules,
    /// The inputs from outside of the block.
    pub inputs: Inputs<'a>,
    /// All variables, defined and referred to.
    pub variables: Variables,
    /// The servers so far, with their `listen` lines.
    pub servers: Vec<(Arc<Server>, Vec<ListenLine>)>,
    /// The access logs.
    pub log_targets: Vec<LogTarget>,
    /// Warnings.
    pub warnings: Vec<Error>,
    /// The end of the block.
    end: Option<Pos>,
    locations: Vec<Option<Arc<Location>>>,
    /// The state of reuse of servers.
    reuse: ServerReuse<'a>,
    /// The number of effects that cannot be repeated; see [`Setup::forbid_reuse`].
    unrepeatable: usize,
    /// The modules' drafts of their settings for the whole block.
    pub drafts: MainDrafts,
    /// Whether requests can send commands to the master.
    pub takes_commands: bool,
    /// Whether a `weir_api` accepts whole configurations.
    pub takes_changes: bool,
    /// Whether lines of `stream` are being read.
    pub reads_sessions: bool,
    /// Whether a script runs before the site is served. It may fail.
    pub has_init_script: bool,
    /// Whether a script for the ClientHello may choose TLS versions, for clients of any server.
    pub has_hello_script: bool,
    /// Certificates and keys. Each file is read once.
    pub pem_files: weir_ssl::KeyFiles,
    /// OCSP responses that are fetched for stapling.
    pub staplings: Vec<weir_ssl::ocsp::Stapling>,
    /// Names of `status_zone`s.
    pub status_zones: ZoneNames,
    /// Caches.
    pub caches: Vec<Arc<weir_cache::Cache>>,
    temp_paths: Vec<Arc<TempPath>>,
    /// The directories of caches and temporary files, each with one use.
    pub path_names: PathNames,
    /// The directories with certificates for `tls-alpn-01` challenges.
    pub tls_challenges: Vec<PathBuf>,
    file_caches: u32,
    /// Variables in values of headers.
    in_lines: HashSet<VariableId>,
    /// `server_names_hash_bucket_size`, if it is set.
    pub names_bucket: Option<u64>,
}

impl<'a> Setup<'a> {
    /// The state before the block is read.
    pub fn new(inputs: Inputs<'a>, modules: &'static Modules) -> Self {
        Setup {
            modules,
            inputs,
            variables: Variables::new(),
            servers: Vec::new(),
            log_targets: Vec::new(),
            warnings: Vec::new(),
            end: None,
            locations: Vec::new(),
            reuse: ServerReuse::default(),
            unrepeatable: 0,
            drafts: MainDrafts::new(modules.main_keys),
            takes_commands: false,
            takes_changes: false,
            reads_sessions: false,
            has_init_script: false,
            has_hello_script: false,
            pem_files: weir_ssl::KeyFiles::at(inputs.conf_prefix),
            staplings: Vec::new(),
            status_zones: ZoneNames::default(),
            caches: Vec::new(),
            temp_paths: Vec::new(),
            path_names: PathNames::default(),
            tls_challenges: Vec::new(),
            file_caches: 0,
            in_lines: HashSet::new(),
            names_bucket: None,
        }
    }

    /// Fills the place that was reserved for a location.
    pub fn place(&mut self, id: LocationId, location: Location) {
        self.locations[id.0 as usize] = Some(Arc::new(location));
    }

    /// Whether a request for the location's name without its slash is redirected.
    pub fn auto_redirect(&self, id: LocationId) -> bool {
        self.locations[id.0 as usize].as_ref().is_some_and(|l| l.auto_redirect)
    }

    /// The part of the state that values with variables need.
    pub fn reading(&mut self) -> Reading<'_, Request> {
        Reading { variables: &mut self.variables, warnings: &mut self.warnings }
    }

    /// The part of the state that directives of TLS need.
    pub fn tls(&mut self) -> weir_ssl::SslReader<'_, 'a, Request> {
        weir_ssl::SslReader {
            inputs: self.inputs,
            variables: &mut self.variables,
            warnings: &mut self.warnings,
            files: &mut self.pem_files,
            staplings: &mut self.staplings,
        }
    }

    /// A value with variables. Errors point at the word.
    pub fn template(&mut self, d: &Directive, word: &Word) -> Result<Template, Error> {
        self.template_of(d, word, &word.bytes)
    }

    /// The same for a text that is part of the word or was made of it.
    pub fn template_of(
        &mut self,
        d: &Directive,
        word: &Word,
        text: &[u8],
    ) -> Result<Template, Error> {
        self.reading().template_of(d, word, text)
    }

    /// A value of a header line, with variables. See [`Setup::line_text`].
    pub fn line(&mut self, d: &Directive, word: &Word) -> Result<Template, Error> {
        self.line_of(d, word, &word.bytes)
    }

    /// The same for a text that is part of the word or was made of it.
    pub fn line_of(&mut self, d: &Directive, word: &Word, text: &[u8]) -> Result<Template, Error> {
        let text = self.line_text(d, word, text);
        let template = self.template_of(d, word, &text)?;
        self.note_in_line(template.variables());
        Ok(template)
    }

    /// The text of a header line, or of a part of one. Line ends become spaces, with a warning for
    /// the author of the configuration. The code that writes heads could not tell whether line ends
    /// come from a client, so it escapes them.
    pub fn line_text<'t>(&mut self, d: &Directive, word: &Word, text: &'t [u8]) -> Cow<'t, [u8]> {
        let line = one_line(text);
        if matches!(line, Cow::Owned(_)) {
            let name = d.name.lossy();
            let text = format!("line ends in the value of \"{name}\" become spaces in the header");
            self.warnings.push(d.warning(text).mark(word.pos));
        }
        line
    }

    /// The name of a header. `None`, with a warning, if it is not valid: clients and servers would
    /// refuse the line or the whole head.
    pub fn line_name(&mut self, d: &Directive, word: &Word, name: &[u8]) -> Option<Vec<u8>> {
        if !name.is_empty() && is_name(name) {
            return Some(name.to_vec());
        }
        let text = format!("\"{}\" is no name of a header, ignored", name.escape_ascii());
        self.warnings.push(d.warning(text).mark(word.pos));
        None
    }

    /// A regular expression in a word. Errors point at the word.
    pub fn regex(
        &mut self,
        d: &Directive,
        word: &Word,
        pattern: &[u8],
        caseless: bool,
    ) -> Result<Regex, Error> {
        self.reading().regex(d, word, pattern, caseless)
    }

    /// A path, relative to the prefix.
    pub fn path(&self, name: &[u8]) -> std::path::PathBuf {
        use std::os::unix::ffi::OsStrExt;
        self.inputs.prefix.join(std::ffi::OsStr::from_bytes(name))
    }

    /// The same as bytes. The text may contain variables.
    pub fn full_name(&self, name: &[u8]) -> Vec<u8> {
        use std::os::unix::ffi::OsStringExt;
        self.path(name).into_os_string().into_vec()
    }

    /// The number of a new `open_file_cache` within the site.
    pub fn next_file_cache(&mut self) -> u32 {
        self.forbid_reuse();
        self.file_caches += 1;
        self.file_caches - 1
    }

    /// Reads `..._temp_path DIRECTORY [level1 [level2 [level3]]]`.
    pub fn read_temp_path(
        &mut self,
        d: &Directive,
        context: Contexts,
    ) -> Result<Arc<TempPath>, Error> {
        let name = d.arg(0).map(|word| word.bytes.as_slice()).unwrap_or_default();
        let directory = self.path(name.strip_suffix(b"/").unwrap_or(name));
        let mut levels = Vec::new();
        for word in d.args.iter().skip(1) {
            let digits = values::number(&word.bytes).filter(|n| (1..=DIGITS as u64).contains(n));
            levels.push(digits.ok_or_else(|| d.problem("invalid value"))? as usize);
        }
        if levels.iter().sum::<usize>() > DIGITS {
            return Err(d.problem("invalid value"));
        }
        // A reused server would not be counted.
        if context == Contexts::SERVER {
            self.forbid_reuse();
        }
        let sources = self.inputs.sources;
        self.path_names.add_temporary((d, context), &directory, &levels, sources)?;
        Ok(self.temp_path(TempPath { directory, levels }))
    }

    /// The default directory for a `..._temp_path`.
    pub fn default_temp_path(&mut self, name: &str) -> Arc<TempPath> {
        let directory = self.inputs.temporary.join(name);
        self.temp_path(TempPath { directory, levels: Vec::new() })
    }

    /// An error that nginx reports at the end of the block, where it is detected.
    pub fn error_at_end(&self, text: impl std::fmt::Display) -> Error {
        Error { at: self.end, ..Error::emerg(text) }
    }

    /// Adds a directory for temporary files. The server creates it before it serves.
    pub fn temp_path(&mut self, path: TempPath) -> Arc<TempPath> {
        let known = self.temp_paths.iter().position(|known| **known == path);
        if let Some((at, known)) = known.and_then(|at| Some((at, self.temp_paths.get(at)?.clone())))
        {
            self.use_temp_path(at);
            return known;
        }
        let path = Arc::new(path);
        self.temp_paths.push(path.clone());
        path
    }
}

/// The names of all variables that exist without a directive.
pub fn variables(modules: &'static Modules) -> Vec<String> {
    let (logs, error_log) = (OpenLogs::new(), Arc::new(Log::new(Vec::new())));
    let (root, zones) = (Path::new("/"), Declarations::default());
    let sources = weir_conf::read_text(root, b"").sources;
    let inputs = Inputs {
        configured: "",
        prefix: root,
        conf_prefix: root,
        logs: &logs,
        access_log: root,
        temporary: root,
        error_log: &error_log,
        zones: &zones,
        pools: &[],
        sources: &sources,
        sessions: None,
        before: None,
        known: None,
    };
    let mut setup = Setup::new(inputs, modules);
    for module in modules.list {
        (module.init)(&mut setup);
    }
    setup.variables.names().collect()
}

/// Reads the block. Adds the warnings, also those before an error.
pub fn configure(
    block: &Directive,
    inputs: Inputs<'_>,
    modules: &'static Modules,
    warnings: &mut Vec<Error>,
) -> Result<Site, Error> {
    let DirectiveBody::Block(lines) = &block.body else {
        return Err(block.error("directive \"http\" has no opening \"{\""));
    };
    let mut setup = Setup::new(inputs, modules);
    setup.end = Some(block.close);
    for module in modules.list {
        (module.init)(&mut setup);
    }
    setup.begin_reuse(lines);
    let mut location = LocationConf::new(modules.settings);
    let core = Scope::change(&mut location.core);
    core.error_log = inputs.error_log.clone();
    core.root = Root { value: Template::text(&setup.full_name(b"html")), ..Root::default() };
    let place = Place::new(b"", Kind::Server);
    let mut scope = Scope::new(&mut setup, Contexts::HTTP, ServerConf::default(), location, place);
    let read = scope.read(lines);
    let main = scope.location;
    warnings.append(&mut setup.warnings);
    read?;
    for (server, _) in &setup.servers {
        server.conf.check().map_err(|error| error.at(block.close))?;
    }
    let servers = setup.servers.len();
    setup.path_names.end(servers, inputs.temporary, block.close, inputs.sources)?;
    (modules.check)(&main)?;
    setup.variables.check()?;
    for (id, written) in setup.variables.several_lines() {
        if setup.in_lines.contains(id) {
            warnings.push(written.warning(
                "line ends in this value become spaces where its variable is used in a header",
            ));
        }
    }
    let unused = Place::new(b"", Kind::Server).build(main.clone(), modules, &|_| false)?;
    let (for_next, reused, locations) = setup.end_reuse(unused);
    let around = InheritedSettings {
        resolver: main.core.resolver.clone(),
        resolver_timeout: main.core.resolver_timeout,
    };
    let before = inputs.before.and_then(|before| before.downcast_ref());
    let confs = before.map(|site: &Site| &site.main_confs);
    let known = (&around, inputs.zones, confs);
    let main_confs = setup.drafts.finish(modules.main_keys, known, warnings)?;
    let (mut servers, mut lines) = (Vec::new(), Vec::new());
    for (i, (server, listens)) in setup.servers.into_iter().enumerate() {
        lines.extend(listens.into_iter().map(|line| (ServerId(i as u32), line)));
        servers.push(server);
    }
    let loads = |server: &Arc<Server>| {
        let ssl = server.conf.ssl.as_ref();
        ssl.is_some_and(|tls| tls.quic.is_computed() || tls.is_scripted())
    };
    let loads_for_quic = servers.iter().any(loads);
    let site = Site {
        number: SiteNumber::next(),
        loops: AtomicUsize::new(0),
        listening: Listening::new(&servers, &lines, setup.names_bucket, warnings)?,
        servers,
        locations,
        known: for_next,
        reused,
        asks_realpath: setup.variables.is_referred(b"realpath_root"),
        loads_for_quic,
        variables: setup.variables,
        main,
        staplings: setup.staplings.into_iter().map(Arc::new).collect(),
        certificates: setup.pem_files.certificates,
        status_zones: setup.status_zones.end(),
        caches: setup.caches,
        loop_keys: modules.loop_keys,
        main_confs,
        takes_commands: setup.takes_commands,
        takes_changes: setup.takes_changes,
        has_init_script: setup.has_init_script,
        temp_paths: setup.temp_paths,
        tls_challenges: setup.tls_challenges,
        configured: inputs.configured.to_owned(),
        prefix: without_slash(inputs.prefix.as_os_str().as_encoded_bytes()).to_vec(),
        log_targets: setup.log_targets.into_iter().map(Arc::new).collect(),
    };
    Ok(site)
}

/// The path without the slash at its end. The root directory is empty.
fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"/").unwrap_or(path)
}
