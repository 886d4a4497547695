//! A build of C files by make, two at once.

use std::fmt::Write as _;
use std::fs;

use anyhow::Result;

use super::{Family, Place, Work, Workload};
use crate::measure::Meter;

struct Build;

impl Build {
    fn files(place: &Place) -> u64 {
        place.size(400, 40)
    }
}

/// A file that includes some headers and has some functions.
fn source(number: u64, headers: u64) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <string.h>\n");
    for k in 0..8 {
        let _ = writeln!(text, "#include \"h{}.h\"", (number * 7 + k * 13) % headers);
    }
    for k in 0..12 {
        let _ = writeln!(
            text,
            "int f{number}_{k}(int a) {{ int s = {k}; for (int i = 0; i < a; i++) s += i * {number} ^ s; return s; }}"
        );
    }
    text
}

impl Work for Build {
    fn prepare(&self, place: &Place) -> Result<()> {
        let files = Build::files(place);
        let headers = files.div_ceil(2);
        for n in 0..headers {
            let mut text = format!("#ifndef H{n}\n#define H{n}\n");
            for k in 0..60 {
                let _ = writeln!(text, "static inline int h{n}_{k}(int a) {{ return a * {k} + {n}; }}");
            }
            text.push_str("#endif\n");
            fs::write(place.path(&format!("h{n}.h")), text)?;
        }
        let mut main = String::from("int main(void) { return 0; }\n");
        for n in 0..files {
            fs::write(place.path(&format!("s{n}.c")), source(n, headers))?;
            let _ = writeln!(main, "int f{n}_0(int);");
        }
        fs::write(place.path("main.c"), main)?;
        fs::write(
            place.path("Makefile"),
            "OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\tgcc -o $@ $(OBJECTS)\n\
             %.o: %.c\n\tgcc -O0 -g -MMD -c -o $@ $<\n",
        )?;
        place.sync()
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        meter.start()?;
        place.run("make", &["-s", "-j2"])?;
        meter.add(Build::files(place));
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    let about = "make -j2 of 400 (quick: 40) C files after a mount";
    vec![Workload::new("build", Family::Build, about, Build).operation("file").cold()]
}
