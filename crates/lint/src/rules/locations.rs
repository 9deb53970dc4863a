//! Rules about locations.

use weir_conf::{BlockPath, Directive, Error};

use super::{found, text};

/// The prefix of a location that is no regular expression and no exact match.
fn prefix(location: &Directive) -> Option<&str> {
    match (text(location.arg(0)), location.arg(1)) {
        ("=" | "~" | "~*", Some(_)) => None,
        ("^~", Some(path)) => path.str(),
        (path, None) if path.starts_with('/') => Some(path),
        _ => None,
    }
}

/// A prefix `location` with an `alias` to a directory, not both with a trailing slash.
pub(super) fn alias_slash<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let (path, alias) = (prefix(scope.block()?)?, d.arg(0)?);
    let to = alias.str().filter(|_| d.name.is("alias"))?;
    match (path.ends_with('/'), to.ends_with('/')) {
        (false, true) => found(
            d,
            alias,
            format!("in nginx, \"{path}../\" leads to what lies beside \"{to}\""),
            format!("let both end in a slash: location {path}/ {{ alias {to}; }}"),
        ),
        // A single file is no problem, nor a prefix beside which nothing else can be requested.
        (false, false)
            if !to.contains('$')
                && !path.rsplit('/').next()?.contains('.')
                && !scope.inner().iter().any(|beside| beside.name.is("internal")) =>
        {
            found(
                d,
                alias,
                format!(
                    "\"{path}-a/b\" becomes \"{to}-a/b\": directories beside whose names begin so are served"
                ),
                format!("let both end in a slash: location {path}/ {{ alias {to}/; }}"),
            )
        }
        (true, false) if !to.contains('$') => found(
            d,
            alias,
            format!("\"{path}a\" becomes \"{to}a\""),
            format!("let both end in a slash: alias {to}/;"),
        ),
        _ => None,
    }
}

/// `location /a { proxy_pass http://u/b/; }`: a request for /a../ leaves /b/.
pub(super) fn proxy_slash<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let (path, to) = (prefix(scope.block()?)?, d.arg(0)?);
    let url = to.str().filter(|_| d.name.is("proxy_pass"))?;
    let uri = url.split_once("://").and_then(|(_, rest)| Some((rest.find('/')?, rest)));
    let (at, rest) = uri?;
    let uri = rest.get(at..)?;
    (!path.ends_with('/') && uri.ends_with('/') && !uri.contains('$') && path.len() > 1)
        .then_some(())?;
    found(
        d,
        to,
        format!(
            "\"{path}/x\" is asked for as \"{uri}/x\", and in nginx \"{path}../x\" as \"{uri}../x\""
        ),
        format!("let both end in a slash: location {path}/"),
    )
}

/// `location ~ \.php` also matches paths with .php in the middle, such as uploaded files.
pub(super) fn dot_php<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let location = scope.around("location").filter(|_| d.name.is("fastcgi_pass"))?;
    let pattern = location.arg(1).filter(|_| text(location.arg(0)).starts_with('~'))?;
    let loose = pattern.str()?.ends_with("\\.php") || pattern.str()?.ends_with(".php");
    let looks = scope.inner().iter().any(|d| d.name.is("try_files"));
    (loose && !looks).then_some(())?;
    found(
        location,
        pattern,
        "\"/upload/picture.png/x.php\" is given to PHP, too, as is any path with \".php\" in it",
        "end the pattern with $, and add: try_files $fastcgi_script_name =404;",
    )
}

/// An `if` is a location of its own: directives beside it are not in force inside.
pub(super) fn if_is_a_location<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    (d.name.is("if") && scope.around("location").is_some()).then_some(())?;
    // An `if` with `return` needs only what is inside.
    (!d.block().iter().any(|inner| inner.name.is("return"))).then_some(())?;
    let odd = [
        "proxy_pass",
        "fastcgi_pass",
        "uwsgi_pass",
        "add_header",
        "proxy_set_header",
        "root",
        "alias",
    ];
    let inner = d.block().iter().find(|inner| odd.iter().any(|name| inner.name.is(name)))?;
    found(
        inner,
        &inner.name,
        format!(
            "in an \"if\", \"{}\" makes another location, and the last one that is true serves alone",
            inner.name.lossy()
        ),
        "use map for values, and another location (error_page 418 = @name; return 418;) for the rest",
    )
}

/// A location that is never reached: a repeated regular expression, or one after another that
/// matches everything.
pub(super) fn never_reached<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let regex = |d: &'a Directive| -> Option<(bool, &'a str)> {
        let kind = text(d.arg(0));
        (d.name.is("location") && kind.starts_with('~')).then_some(())?;
        Some((kind == "~*", d.arg(1)?.str()?))
    };
    let (_, own) = regex(d)?;
    let before = scope.inner().iter().take_while(|other| !std::ptr::eq(*other, d));
    let takes_all = |pattern: &str| [".", ".*", "^/", "/", "^", "^.*$", "^/.*"].contains(&pattern);
    let first = before
        .filter_map(|other| Some((other, regex(other)?)))
        .find(|(_, (_, other))| *other == own || takes_all(other));
    let (other, (_, pattern)) = first?;
    found(
        d,
        d.arg(1)?,
        format!(
            "the location \"{pattern}\" in line {} is asked before and takes it all",
            other.end.line
        ),
        "regular expressions are tried in their order: put the narrower one first",
    )
}

/// `error_log off` writes to a file named `off`.
pub(super) fn error_log_off<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let word = d.arg(0).filter(|word| d.name.is("error_log") && word.is("off"))?;
    found(
        d,
        word,
        "errors are written to a file whose name is \"off\"",
        "error_log /dev/null crit;",
    )
}

/// The whole file system is served.
pub(super) fn whole_disk<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let word = d.arg(0).filter(|word| (d.name.is("root") || d.name.is("alias")) && word.is("/"))?;
    let internal = scope.inner().iter().any(|d| d.name.is("internal"));
    let passes = scope.inner().iter().any(|d| d.name.lossy().ends_with("_pass"));
    (!internal && !passes).then_some(())?;
    found(
        d,
        word,
        "any file of the machine that the worker may read is served",
        "name the directory of the site",
    )
}
