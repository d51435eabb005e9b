# frozen_string_literal: true

require "json"
require "open3"
require_relative "../build"
require_relative "features"

module Tasks
  module Metal
    # Reads the sources: which custom ops exist in the gem's candle crates and in ours, which of them have no Metal
    # forward, and whether our code reaches one of those.
    class Audit
      IMPLEMENTATION = /impl(?:<[^{}]*?>)?\s+(?:\w+::)*((?:CustomOp|InplaceOp)\w*)(?:<[^>{}]*>)?\s+for\s+(\w+)/

      Operation = Struct.new(:crate, :path, :trait, :type, :metal, keyword_init: true)

      # @return [Boolean] whether every reachable op has a Metal forward; lists what was found
      def run
        ours, candles = operations.partition { |operation| operation.crate == "ours" }
        print_table("candle's custom ops", candles)
        print_table("our custom ops", ours)
        lacking = ours.reject(&:metal) + candles.reject(&:metal).select { |operation| reached?(operation) }
        puts "reached and without a Metal forward: #{lacking.empty? ? "none" : lacking.map(&:type).join(", ")}"
        lacking.empty?
      end

      private

      def print_table(title, list)
        puts "#{title}:"
        list.each do |operation|
          reach = operation.crate != "ours" && !operation.metal ? ", not reached by our code" : ""
          reach = ", REACHED" if reach != "" && reached?(operation)
          puts "  #{operation.metal ? "metal   " : "no metal"} #{operation.type} (#{operation.crate}#{reach})"
        end
        puts "  none" if list.empty?
      end

      def operations
        @operations ||= crates.flat_map do |crate, folder|
          Dir[File.join(folder, "src/**/*.rs")].sort.flat_map { |path| operations_of(crate, path) }
        end
      end

      def operations_of(crate, path)
        return [] if path.end_with?("/src/custom_op.rs") # where the traits are defined

        text = File.read(path)
        forwards = ["fn metal_fwd", *macros_with_forward(text)]
        text.enum_for(:scan, IMPLEMENTATION).map do
          match = Regexp.last_match
          body = block_after(text, match.end(0))
          metal = forwards.any? { |forward| body.include?(forward) }
          Operation.new(crate:, path:, trait: match[1], type: match[2], metal:)
        end
      end

      # Calls of macros of the file that write a Metal forward.
      def macros_with_forward(text)
        text.enum_for(:scan, /macro_rules! (\w+)/).filter_map do
          match = Regexp.last_match
          "#{match[1]}!(" if block_after(text, match.end(0)).include?("fn metal_fwd")
        end
      end

      # The text between the next brace and the one that closes it.
      def block_after(text, position)
        start = text.index("{", position)
        depth = 0
        text[start..].each_char.with_index do |character, index|
          depth += { "{" => 1, "}" => -1 }.fetch(character, 0)
          return text[start, index + 1] if depth.zero?
        end
        text[start..]
      end

      # An op is reached by its name or by a public function of its file that uses it.
      def reached?(operation)
        names = [operation.type, *functions_using(operation)]
        our_sources.any? do |text|
          names.any? { |name| text.match?(/\bcandle_(?:nn|core)\b.*\b#{name}\b/) }
        end
      end

      def functions_using(operation)
        text = File.read(operation.path)
        text.enum_for(:scan, /pub fn (\w+)/).filter_map do
          match = Regexp.last_match
          match[1] if block_after(text, match.end(0)).match?(/\b#{operation.type}\b/)
        end
      end

      def our_sources
        @our_sources ||= Dir[File.join(Build::ROOT, "ext/{candle,engine,formats,kernels,base}/src/**/*.rs")]
                         .map { |path| File.read(path) }
      end

      def crates
        output, status = Open3.capture2("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform",
                                        "aarch64-apple-darwin", chdir: Build::ROOT)
        raise "cargo metadata failed" unless status.success?

        packages = JSON.parse(output).fetch("packages")
        Features::CRATES.to_h do |name|
          [name, File.dirname(packages.find { |package| package["name"] == name }.fetch("manifest_path"))]
        end.merge("ours" => File.join(Build::ROOT, "ext/kernels"))
      end
    end
  end
end
