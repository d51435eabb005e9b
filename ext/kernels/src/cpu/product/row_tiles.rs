//! How the rows of a task become tiles of a kernel.

/// Runs `$tile` for the rows `0..$rows` in tiles of as many rows as `$HEIGHT` says, `$row` being the
/// first: the tallest of at most `$most` rows first, lower ones for what is left.
macro_rules! in_row_tiles {
    ($rows:expr, most $most:expr, ($row:ident, $HEIGHT:ident) => $tile:expr) => {
        in_row_tiles!(@heights [12 8 6 4 3 2 1] $rows, $most, $row, $HEIGHT, $tile)
    };
    (@heights [$($height:literal)*] $rows:expr, $most:expr, $row:ident, $HEIGHT:ident, $tile:expr) => {{
        let rows: usize = $rows;
        let mut $row = 0;
        $(
            if const { $height <= $most } {
                const $HEIGHT: usize = $height;
                while rows - $row >= $HEIGHT {
                    $tile;
                    $row += $HEIGHT;
                }
            }
        )*
        let _ = $row;
    }};
}
pub(crate) use in_row_tiles;
