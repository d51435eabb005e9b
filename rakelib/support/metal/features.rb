# frozen_string_literal: true

require "open3"
require_relative "../build"

module Tasks
  module Metal
    # Each candle crate compiles its Metal code under its own feature: one that lacks it fails at run time with
    # "no metal implementation for …".
    class Features
      CRATES = %w[candle-core candle-nn candle-transformers].freeze

      # @return [Boolean] whether all of them have `metal` on macOS, Intel or Apple, and none elsewhere
      def run
        [expect("aarch64-apple-darwin", CRATES), expect("x86_64-apple-darwin", CRATES),
         expect("x86_64-unknown-linux-gnu", [])].all?
      end

      private

      def expect(target, wanted)
        found = crates_with_metal(target)
        puts "#{target}: metal in #{found.empty? ? "no candle crate" : found.join(", ")}"
        warn "#{target}: expected metal in #{wanted.inspect}" unless found == wanted
        found == wanted
      end

      def crates_with_metal(target)
        output, status = Open3.capture2("cargo", "tree", "--locked", "--edges", "features,no-dev", "--prefix", "none",
                                        "--target", target, "--package", "red-candle-ext", chdir: Build::ROOT)
        raise "cargo tree failed for #{target}" unless status.success?

        output.scan(/^(candle-\w+) feature "metal"/).flatten.uniq.sort & CRATES
      end
    end
  end
end
