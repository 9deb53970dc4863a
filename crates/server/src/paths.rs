//! The paths of files: built-in defaults, changed by `-p`, `-c` and `-e`.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::cli::CommandLine;

/// The layout of Debian's nginx package, used when no prefix is given.
const PREFIX: &str = "/usr/share/nginx/";
const CONF: &str = "/etc/nginx/nginx.conf";
/// The site that weir's package installs, for machines without nginx, and its logs.
const OWN_CONF: &str = "/etc/weir/nginx.conf";
const OWN_ERROR_LOG: &str = "/var/log/weir/error.log";
const OWN_ACCESS_LOG: &str = "/var/log/weir/access.log";
/// For temporary files of requests.
const TEMPORARY: &str = "/var/lib/weir";
const ERROR_LOG: &str = "/var/log/nginx/error.log";
const ACCESS_LOG: &str = "/var/log/nginx/access.log";
const PID: &str = "/run/nginx.pid";

/// The layout under a prefix of `-p`: that of nginx built from source.
const CONF_UNDER: &str = "conf/nginx.conf";
const ERROR_LOG_UNDER: &str = "logs/error.log";
const ACCESS_LOG_UNDER: &str = "logs/access.log";
const PID_UNDER: &str = "logs/nginx.pid";

/// The paths of this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The base of relative paths in the configuration; ends with a slash.
    pub prefix: PathBuf,
    /// The base of relative paths of `include` and similar directives.
    pub conf_prefix: PathBuf,
    /// The configuration file. None: the built-in configuration.
    pub conf: Option<PathBuf>,
    /// The error log until the configuration names one. None: stderr.
    pub error_log: Option<PathBuf>,
    /// The access log, if the configuration names none.
    pub access_log: PathBuf,
    /// The directory of temporary files, if the configuration names none.
    pub temporary: PathBuf,
    /// The pid file, if the configuration names none. None: no file.
    pub pid: Option<PathBuf>,
}

impl Paths {
    /// The paths for these options. `exists` says whether a file exists, and is only asked about
    /// the default configuration files. If there is none, the built-in configuration is used.
    pub fn new(options: &CommandLine, exists: impl Fn(&Path) -> bool) -> Paths {
        let prefix = options.prefix.as_deref().map_or_else(|| PREFIX.into(), directory);
        let given = options.prefix.is_some();
        let temporary = if given { prefix.clone() } else { TEMPORARY.into() };
        let pick = |under: &str, alone: &str| prefix.join(if given { under } else { alone });
        let alone = !given && options.conf.is_none();
        let there = [CONF, OWN_CONF].into_iter().find(|path| exists(Path::new(path)));
        if alone && there.is_none() {
            return Paths {
                conf_prefix: prefix.clone(),
                conf: None,
                error_log: error_log(options, &prefix, None),
                access_log: ACCESS_LOG.into(),
                temporary: std::env::temp_dir(),
                pid: None,
                prefix,
            };
        }
        let conf = match &options.conf {
            Some(name) => joined(&prefix, name),
            None => pick(CONF_UNDER, there.unwrap_or(CONF)),
        };
        let conf_prefix = conf.parent().map_or_else(|| prefix.clone(), Path::to_path_buf);
        let (error, access) = match conf == Path::new(OWN_CONF) {
            true => (OWN_ERROR_LOG, OWN_ACCESS_LOG),
            false => (ERROR_LOG, ACCESS_LOG),
        };
        Paths {
            conf_prefix,
            error_log: error_log(options, &prefix, Some(pick(ERROR_LOG_UNDER, error))),
            access_log: pick(ACCESS_LOG_UNDER, access),
            temporary,
            pid: Some(pick(PID_UNDER, PID)),
            conf: Some(conf),
            prefix,
        }
    }

    /// The name of the configuration in messages.
    pub fn conf_name(&self) -> String {
        self.conf.as_deref().map_or("built-in configuration".into(), |p| p.display().to_string())
    }

    /// The options of nginx's `configure` for these paths, from which tools read them.
    pub fn configured(&self) -> String {
        let prefix = self.prefix.display().to_string();
        let prefix = match prefix.trim_end_matches('/') {
            "" => "/",
            shown => shown,
        };
        let conf = self.conf.as_deref().unwrap_or(Path::new(CONF)).display();
        let error_log = self.error_log.as_deref().map_or("stderr".into(), Path::to_string_lossy);
        let access_log = self.access_log.display();
        let pid = self.pid.as_deref().unwrap_or(Path::new(PID)).display();
        format!(
            " --prefix={prefix} --conf-path={conf} --error-log-path={error_log} \
             --http-log-path={access_log} --pid-path={pid}"
        )
    }
}

/// The path of a file in the configuration: itself if absolute, otherwise under the prefix. In
/// contrast to [`Path::join`], an empty name is the prefix itself and nothing is normalised, as in
/// nginx.
pub fn joined(prefix: &Path, name: &OsStr) -> PathBuf {
    if name.as_bytes().starts_with(b"/") {
        return name.into();
    }
    let mut whole = prefix.as_os_str().as_bytes().to_vec();
    whole.extend_from_slice(name.as_bytes());
    std::ffi::OsString::from_vec(whole).into()
}

/// A directory's name with a slash at the end.
fn directory(name: &OsStr) -> PathBuf {
    let mut bytes = name.as_bytes().to_vec();
    if !bytes.is_empty() && !bytes.ends_with(b"/") {
        bytes.push(b'/');
    }
    std::ffi::OsString::from_vec(bytes).into()
}

fn error_log(options: &CommandLine, prefix: &Path, default: Option<PathBuf>) -> Option<PathBuf> {
    match &options.error_log {
        Some(name) if name.is_empty() || name == "stderr" => None,
        Some(name) => Some(joined(prefix, name)),
        None => default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    fn paths(args: &[&str], conf_exists: bool) -> Paths {
        let args: Vec<_> = args.iter().map(Into::into).collect();
        Paths::new(&parse(&args).unwrap(), |_| conf_exists)
    }

    #[test]
    fn without_options_debian_s_places_if_there_is_a_configuration() {
        let p = paths(&[], true);
        assert_eq!(p.conf.as_deref(), Some(Path::new("/etc/nginx/nginx.conf")));
        assert_eq!(p.conf_prefix, Path::new("/etc/nginx"));
        assert_eq!(p.pid.as_deref(), Some(Path::new("/run/nginx.pid")));
        assert_eq!(p.error_log.as_deref(), Some(Path::new("/var/log/nginx/error.log")));
        assert_eq!(p.prefix, Path::new("/usr/share/nginx/"));
        assert_eq!(p.temporary, Path::new("/var/lib/weir"));
    }

    #[test]
    fn without_options_and_configuration_the_built_in_one() {
        let p = paths(&[], false);
        assert_eq!((p.conf, p.pid, p.error_log), (None, None, None));
    }

    #[test]
    fn weir_s_own_site_is_for_machines_without_nginx() {
        let only =
            |there: &str| Paths::new(&CommandLine::default(), |path| path == Path::new(there));
        let own = only(OWN_CONF);
        assert_eq!(own.conf.as_deref(), Some(Path::new(OWN_CONF)));
        assert_eq!(own.error_log.as_deref(), Some(Path::new(OWN_ERROR_LOG)));
        assert_eq!(own.access_log, Path::new(OWN_ACCESS_LOG));
        assert_eq!(own.pid.as_deref(), Some(Path::new(PID)));
        let both = Paths::new(&CommandLine::default(), |_| true);
        assert_eq!(both.conf.as_deref(), Some(Path::new(CONF)));
        assert_eq!(both.access_log, Path::new(ACCESS_LOG));
    }

    #[test]
    fn tools_find_the_places_of_files() {
        let debian = " --prefix=/usr/share/nginx --conf-path=/etc/nginx/nginx.conf \
                      --error-log-path=/var/log/nginx/error.log \
                      --http-log-path=/var/log/nginx/access.log --pid-path=/run/nginx.pid";
        assert_eq!(paths(&[], true).configured(), debian);
        assert!(paths(&["-p", "/srv/w"], true).configured().contains("=/srv/w/logs/nginx.pid"));
        let none = paths(&[], false).configured();
        assert!(none.contains(" --conf-path=/etc/nginx/nginx.conf --error-log-path=stderr "));
    }

    #[test]
    fn a_named_configuration_is_never_replaced_by_the_built_in_one() {
        assert!(paths(&["-c", "/x.conf"], false).conf.is_some());
        assert!(paths(&["-p", "/x"], false).conf.is_some());
    }

    #[test]
    fn a_prefix_has_the_layout_of_a_source_build() {
        let p = paths(&["-p", "/srv/w"], true);
        assert_eq!(p.conf.as_deref(), Some(Path::new("/srv/w/conf/nginx.conf")));
        assert_eq!(p.error_log.as_deref(), Some(Path::new("/srv/w/logs/error.log")));
        assert_eq!(p.temporary, Path::new("/srv/w/"));
        assert_eq!(p.pid.as_deref(), Some(Path::new("/srv/w/logs/nginx.pid")));
    }

    #[test]
    fn relative_names_are_under_the_prefix() {
        let p = paths(&["-p", "/srv/w/", "-c", "x/y.conf", "-e", "e.log"], true);
        assert_eq!(p.conf.as_deref(), Some(Path::new("/srv/w/x/y.conf")));
        assert_eq!(p.conf_prefix, Path::new("/srv/w/x"));
        assert_eq!(p.error_log.as_deref(), Some(Path::new("/srv/w/e.log")));
        assert_eq!(paths(&["-c", "y.conf"], true).conf.unwrap(), {
            Path::new("/usr/share/nginx/y.conf")
        });
        assert_eq!(joined(Path::new("/a/"), OsStr::new("/b")), Path::new("/b"));
    }

    #[test]
    fn the_error_log_may_be_stderr() {
        assert_eq!(paths(&["-e", "stderr"], true).error_log, None);
        assert_eq!(paths(&["-e", "", "-t"], true).error_log, None);
    }
}
