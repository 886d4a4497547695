//! Prints the tables of docs/check.md: rules, meanings, invariants.

fn main() {
    println!("{}", silt_verify::rules::markdown());
    println!("{}", silt_verify::meanings::markdown());
    print!("{}", silt_verify::invariants::markdown());
}
