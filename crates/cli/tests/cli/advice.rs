//! What is refused is told with what to do next.

use crate::common::{Bench, Mounted, can_mount};

/// A note is about a volume that is made, and not about one that is not.
#[test]
fn nothing_is_noted_of_a_volume_that_is_not_made() {
    let b = Bench::new();
    let make: &[&str] = &["mkfs", "-b", "8192", "-B", "32", "--size", "64M", "v.img"];
    let run = b.run(make);
    assert!(run.code == 0 && run.err.contains("note: the Linux kernel's driver cannot mount"), "{}", run.err);
    let run = b.run(make);
    assert!(run.code == 1 && !run.err.contains("note:"), "{}", run.err);
    let run = b.run(&["mount", "-o", "errors=panic", "none.img", "m"]);
    assert!(run.code == 9 && !run.err.contains("note:"), "{}", run.err);
    let run = b.run(&["tune", "-L", &"x".repeat(90), "none.img"]);
    assert!(run.code == 9 && !run.err.contains("note:"), "{}", run.err);
    // The one about segments comes with the plan.
    std::fs::write(b.path("w.img"), "a letter").unwrap();
    let run = b.run(&["mkfs", "--size", "32M", "w.img"]);
    assert!(run.code == 1 && !run.err.contains("note:"), "{}", run.err);
}

#[test]
fn numbers_below_nothing_are_no_options() {
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    for (args, number) in [
        (&["resize", &v, "-1"][..], "-1"),
        (&["resize", &v, "--size", "-1G"], "-1"),
        (&["mkfs", "--size", "-1", "w.img"], "-1"),
        (&["lscp", "-n", "-5", &v], "-5"),
        (&["rmcp", &v, "-5"], "-5"),
    ] {
        let said = b.fails(2, args);
        let wanted =
            format!("{number} is no option, and no number here is below 0\n  (write it without the minus");
        assert!(said.contains(&wanted), "{args:?}: {said}");
    }
    // As mkfs has it.
    let said = b.ok(&["resize", "--size", "48M", &v]);
    assert!(said.contains("fewer than before"), "{said}");
}

#[test]
fn an_image_that_was_cut_short_is_told_so_by_who_scrubs_it() {
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    std::fs::File::options().write(true).open(&v).unwrap().set_len(8 << 20).unwrap();
    for verb in ["scrub", "check", "rescue"] {
        let run = b.run(&[verb, &v]);
        assert!(run.code != 0, "{verb}");
        assert!(
            format!("{}{}", run.out, run.err).contains("copy it again"),
            "{verb}: {}{}",
            run.out,
            run.err
        );
    }
}

/// Others make an image shorter while it is mounted: what cannot be written is told with how long the image is now.
#[test]
fn an_image_that_was_cut_short_while_it_is_mounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "interval=3600"], "m");
    std::fs::write(m.path("f"), vec![1; 1 << 20]).unwrap();
    std::fs::File::options().write(true).open(&v).unwrap().set_len(1 << 20).unwrap();
    let told = "the image is 1048576 bytes long now, shorter than the volume";
    let said = b.fails(10, &["umount", m.dir()]);
    let hint = format!("  (copy what is new elsewhere; silt umount -l {} goes on without it)", m.dir());
    assert!(said.contains(told) && said.contains(&hint), "{said}");
    assert!(m.is_mounted());
    let said = b.fails(10, &["sync", m.dir()]);
    assert!(said.contains(told) && said.contains("silt rescue"), "{said}");
    let said = b.ok(&["status", m.dir()]);
    assert!(said.contains(told), "{said}");
    assert!(std::fs::read(m.path("f")).unwrap() == vec![1; 1 << 20], "it can be copied");
    b.ok(&["umount", "-l", m.dir()]);
    assert!(!m.is_mounted());
}

/// Whoever names no volume where several are mounted is told which there are.
#[test]
fn several_mounted_volumes_are_named() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (v, w) = (b.volume("v.img", "64M"), b.volume("w.img", "64M"));
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (n, _) = Mounted::new(&b, &[&w], "n");
    for verb in ["lscp", "sync", "mkcp"] {
        let said = b.fails(2, &[verb]);
        assert!(said.contains("volumes are mounted, on /") && said.contains(", /"), "{said}");
        assert!(said.contains("(name the one that is meant, by its directory"), "{said}");
    }
    n.unmount();
    m.unmount();
}
