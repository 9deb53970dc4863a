//! Modules in C that scripts in Lua load find Lua's functions in the program itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for names in ["lua_*", "luaL_*"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={names}");
    }
}
