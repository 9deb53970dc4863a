//! The search paths of `require`: `package.path` and `package.cpath`.

use std::env::consts::ARCH;
use std::env::var_os;

use mlua::{Lua, Table};

use super::environment;
use super::script::Scripts;

/// The last of LuaJIT's own directories for Lua modules, and the distributions' directories that
/// are added after it. Packages such as Debian's `lua-resty-*` are found without a directive.
const LUA: (&str, &str) = (
    "/usr/local/share/lua/5.1/?/init.lua",
    "/usr/share/luajit-2.1/?.lua;/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua",
);

/// LuaJIT's own directory for modules in C.
const C: &str = "/usr/local/lib/lua/5.1/?.so";

/// Sets both paths by `lua_package_path` and `lua_package_cpath`. `prefix` ends with a slash.
pub fn set_paths(lua: &Lua, scripts: &Scripts, prefix: &[u8]) -> mlua::Result<()> {
    let package: Table = lua.globals().get("package")?;
    let c = distributions_c();
    for (key, said, variable, own, more) in [
        ("path", &scripts.package_path, "LUA_PATH", LUA.0, LUA.1),
        ("cpath", &scripts.package_cpath, "LUA_CPATH", C, c.as_str()),
    ] {
        let default = package.get::<mlua::String>(key)?;
        // `LUA_PATH` in the environment may have replaced LuaJIT's own directories.
        let default =
            replaced(&default.as_bytes(), own.as_bytes(), format!("{own};{more}").as_bytes());
        let default = match environment::at_start(variable.as_bytes()) {
            Some(path) if var_os(variable).is_none() => with_defaults(path, &default),
            _ => default,
        };
        let path = match said {
            Some(path) => with_defaults(&with_prefix(path, prefix), &default),
            None => default,
        };
        package.set(key, lua.create_string(path)?)?;
    }
    Ok(())
}

/// Debian's directories for C modules: the architecture's, and the shared one.
fn distributions_c() -> String {
    let triple = match ARCH {
        "arm" => "arm-linux-gnueabihf".to_owned(),
        "x86" => "i386-linux-gnu".to_owned(),
        "powerpc64" => "powerpc64le-linux-gnu".to_owned(),
        arch => format!("{arch}-linux-gnu"),
    };
    format!("/usr/lib/{triple}/lua/5.1/?.so;/usr/lib/lua/5.1/?.so")
}

/// Replaces `$prefix` and `${prefix}` by the server's prefix.
fn with_prefix(path: &[u8], prefix: &[u8]) -> Vec<u8> {
    replaced(&replaced(path, b"$prefix", prefix), b"${prefix}", prefix)
}

/// Replaces `;;` by the default path.
fn with_defaults(path: &[u8], default: &[u8]) -> Vec<u8> {
    let mut parts = Vec::new();
    let mut rest = path;
    while let Some(at) = memchr::memmem::find(rest, b";;") {
        parts.extend([&rest[..at], default]);
        rest = &rest[at + 2..];
    }
    parts.push(rest);
    parts.retain(|part| !part.is_empty());
    parts.join(&b';')
}

fn replaced(text: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, what) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(by);
        rest = &rest[at + what.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::{with_defaults, with_prefix};

    #[test]
    fn two_semicolons_stand_for_the_default_path() {
        assert_eq!(with_defaults(b"/a/?.lua;;", b"./?.lua"), b"/a/?.lua;./?.lua");
        assert_eq!(with_defaults(b";;/a/?.lua", b"./?.lua"), b"./?.lua;/a/?.lua");
        assert_eq!(with_defaults(b"/a/?.lua", b"./?.lua"), b"/a/?.lua");
        assert_eq!(with_defaults(b"a;;b;;c", b"./?"), b"a;./?;b;./?;c");
    }

    #[test]
    fn the_prefix_of_the_server_stands_for_its_variable() {
        assert_eq!(with_prefix(b"$prefix/a/?.lua;${prefix}b;c", b"/p/"), b"/p//a/?.lua;/p/b;c");
        assert_eq!(with_prefix(b"$other/?.lua;{prefix}", b"/p/"), b"$other/?.lua;{prefix}");
    }
}
