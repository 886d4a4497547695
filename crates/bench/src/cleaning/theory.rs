//! What writes that are spread evenly cost in theory.
//!
//! A segment is emptied when of what it held a share `x` is live still. Where every block is as likely to die next as
//! any other, and segments are in use of whose blocks `used` are live on average, `used = (x - 1) / ln x`: a segment
//! written a time `t` ago holds `exp(-t)`, from 1 down to `x`.

use super::Cost;

/// Where `f` crosses zero, upwards.
fn solve(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if f(middle) < 0.0 { low = middle } else { high = middle }
    }
    low
}

/// Bytes on the device for a byte of the log, with nothing in it that dies sooner than anything else.
fn evenly(used: f64) -> f64 {
    let x = solve(0.0, 1.0, |x| (x - 1.0) / x.ln() - used);
    1.0 / (1.0 - x)
}

/// Bytes on the device for a byte written: what the log takes without cleaning, as if all of it died evenly.
pub fn of_logs(cost: &Cost) -> f64 {
    cost.own * evenly(cost.used)
}

/// The same where the oldest segment goes first, and what is no data is dead long before its turn but keeps its place
/// until then. One round of the log is `1 / used` of the live data, of which `1 / all` is data that was written; a block
/// outlives that with `p = exp(-1 / (used * all))`, and `all = 1 / (1 - p) + besides`.
pub fn of_oldest_first(cost: &Cost) -> f64 {
    let p = |all: f64| (-1.0 / (cost.used * all)).exp();
    solve(1.0, 1000.0, |all| all - 1.0 / (1.0 - p(all)) - cost.besides())
}

#[cfg(test)]
mod tests {
    use super::super::wear::Wear;
    use super::*;

    fn cost(used: f64, besides: f64) -> Cost {
        let wear = Wear { least: 1.0, mean: 1.0, most: 1.0, variation: 0.0 };
        Cost { all: 3.0 + besides, own: 1.0, copied: 2.0, used, wear, steps: 1, emptied: 1 }
    }

    /// Known points of the curve.
    #[test]
    fn without_tables() {
        for (used, expected) in [(0.5, 1.26), (0.8, 2.69), (0.9, 5.18)] {
            let got = evenly(used);
            assert!((got - expected).abs() < 0.02, "{used}: {got}");
            // Then it makes no difference which goes first.
            let oldest = of_oldest_first(&cost(used, 0.0));
            assert!((oldest - got).abs() < 0.01, "{used}: {oldest}, {got}");
        }
    }

    /// Tables take a full round of the log: more than as much as they are themselves.
    #[test]
    fn with_tables() {
        let (without, with) = (of_oldest_first(&cost(0.8, 0.0)), of_oldest_first(&cost(0.8, 1.0)));
        assert!(with > without + 2.0, "{with}, {without}");
        let p = (-1.0 / (0.8 * with)).exp();
        assert!((with - 1.0 / (1.0 - p) - 1.0).abs() < 1e-6);
    }
}
