//! Compiles the C benchmarks, and the adapters to allocators that are not Rust crates.

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=../../crates/capi/include");
    println!("cargo::rustc-check-cfg=cfg(boost)");
    println!("cargo::rustc-check-cfg=cfg(pmemobj)");
    #[cfg(feature = "c")]
    {
        cc::Build::new()
            .file("c/stack.c")
            .include("../../crates/capi/include")
            .std("gnu11")
            .opt_level(3)
            .compile("races");
        peer("boost", cc::Build::new().cpp(true).std("c++17").file("c/boost.cpp"), &[]);
        peer("pmemobj", cc::Build::new().file("c/pmemobj.c"), &["pmemobj"]);
    }
}

/// Compiles what needs a library of the system, and says by a `cfg` whether it is there.
#[cfg(feature = "c")]
fn peer(name: &str, build: &mut cc::Build, libraries: &[&str]) {
    let ours = format!("peer_{name}");
    if build.opt_level(3).warnings(false).cargo_warnings(false).try_compile(&ours).is_ok() {
        println!("cargo::rustc-cfg={name}");
        let link = |library| println!("cargo::rustc-link-arg-bin=persistent=-l{library}");
        libraries.iter().for_each(link);
    }
}
