# frozen_string_literal: true

require "open3"

module Tasks
  module Metal
    # Turns a Metal source into C++ that the host shim compiles: threadgroup memory becomes watched cells,
    # and every kernel gets an entry that fetches its arguments from numbered buffers and the lane's position.
    class Translator
      Kernel = Struct.new(:name, :arguments)

      POSITIONS = {
        "threadgroup_position_in_grid" => { "uint" => "p.group[0]", "uint2" => "uint2{p.group[0], p.group[1]}" },
        "thread_position_in_grid" => {
          "uint" => "p.group[0] * p.count + p.index",
          "uint2" => "uint2{p.group[0] * p.count + p.index, p.group[1]}"
        },
        "thread_index_in_threadgroup" => { "uint" => "p.index" },
        "threads_per_threadgroup" => { "uint" => "p.count" },
        "thread_index_in_simdgroup" => { "uint" => "p.lane" },
        "simdgroup_index_in_threadgroup" => { "uint" => "p.simdgroup" },
        "simdgroups_per_threadgroup" => { "uint" => "p.simdgroups" }
      }.freeze

      # @param compiler [String] the clang++ that preprocesses
      def initialize(compiler)
        @compiler = compiler
      end

      # @param source [String] Metal source, the common part in front
      # @return [String] C++
      def call(source)
        text = preprocess(source)
        kernels = kernels_of(text)
        raise "the source has no kernel" if kernels.empty?

        [
          "#include \"metal_stdlib.hpp\"",
          watch_threadgroup_memory(erase_attributes(text)),
          kernels.map { |kernel| entry(kernel) },
          "extern \"C\" const host::Kernel host_kernels[] = {",
          kernels.map { |kernel| "    {\"#{kernel.name}\", entry_#{kernel.name}}," },
          "    {nullptr, nullptr},", "};", ""
        ].flatten.join("\n")
      end

      # @return [String] the source with its macros expanded, without the standard library
      def preprocess(source, definitions = ["-D__HAVE_BFLOAT__=1"])
        input = source.gsub(/^#include <metal_stdlib>$/, "")
        words = [@compiler, "-E", "-P", "-x", "c++", *definitions, "-"]
        output, errors, status = Open3.capture3(*words, stdin_data: input)
        raise "preprocessing failed:\n#{errors}" unless status.success?

        output
      end

      private

      def kernels_of(text)
        text.scan(/\bkernel\s+void\s+(\w+)\s*\(([^{]*)\)\s*\{/m).map do |name, arguments|
          Kernel.new(name, arguments.split(/,(?![^\[]*\]\])/).map(&:strip))
        end
      end

      def erase_attributes(text)
        text.gsub(/\bkernel\s+void\b/, "static void").gsub(/\[\[[^\]]*\]\]/, "")
      end

      def watch_threadgroup_memory(text)
        text.gsub(/\bthreadgroup\s+(\w+)\s*\*/, 'host::Shared<\1> *')
            .gsub(/\bthreadgroup\s+(\w+)\s+(\w+)\s*(\[[^;]*\])\s*;/, 'static host::Shared<\1> \2\3;')
      end

      def entry(kernel)
        values = kernel.arguments.map { |argument| value_of(argument) }
        "static void entry_#{kernel.name}(void *const *b, const host::Position &p) " \
          "{ #{kernel.name}(#{values.join(", ")}); }"
      end

      def value_of(argument)
        declaration, attribute = argument.match(/\A(.*?)\s*\[\[\s*(.*?)\s*\]\]\z/m)&.captures
        raise "a kernel argument without an attribute: #{argument}" unless attribute

        type = declaration.sub(/\w+\z/, "").strip
        buffer = attribute[/\Abuffer\((\d+)\)\z/, 1]
        return POSITIONS.fetch(attribute).fetch(type) unless buffer

        type.end_with?("&") ? "*(#{type.delete_suffix("&").strip} *)b[#{buffer}]" : "(#{type})b[#{buffer}]"
      end
    end
  end
end
