# frozen_string_literal: true

require_relative "../../../bench/gpu/pictures"
require_relative "soft"
require_relative "verdicts"

module Tasks
  module Metal
    # Runs seeded models of images on the software device in three types, against the CPU and through the Ruby classes:
    # what `bench/gpu/run.rb pictures` does on a GPU.
    class Pictures
      include Verdicts

      PROGRAM = File.join(__dir__, "picture_program.rb")
      ALL = GpuBench::Pictures.names.freeze
      # One per mechanism.
      FEW = [
        *%w[detr rt_detr_v2 pp_doclayout_v3 swinv2 convnextv2 efficientnet segformer mask2former sam2 depth_anything
            owlv2 grounding-dino colqwen2 metaclip_2-pair dinov3_vit].map { |name| "seeded_pictures/#{name}" },
        *%w[florence2 donut].map { |name| "seeded_readers/#{name}" },
        *%w[qwen3_vl-video gemma4 minicpmv4_6 lfm2_vl idefics2 got_ocr2 llama4 mistral3]
          .map { |name| "seeded_vlms/#{name}" }
      ].freeze
      # How many a process runs.
      AT_ONCE = 6

      # @param names [Array<String>] folders below spec/fixtures
      def initialize(soft, names: FEW)
        @soft = soft
        @names = names
      end

      # @return [Boolean] whether all is well; says what is not
      def run
        parts = @names.each_slice(AT_ONCE).to_a
        runs = Soft.in_parallel(parts.map { |part| -> { one(part) } })
        lines = runs.flat_map { |run| run.output.lines.grep(/^pictures /) }
        compared, missed = lines.partition { |line| line.include?(" ok ") }
        puts "pictures: #{@names.size} fixtures, #{compared.size} comparisons within their limits, #{missed.size} not",
             missed
        parts.zip(runs).map { |part, run| sound?("pictures: #{part.join(" ")}", run) }.all?
      end

      private

      def one(names)
        @soft.run("bundle", "exec", "ruby", "-I", Soft::LIBRARY, "-I", "lib", PROGRAM, *names)
      end
    end
  end
end
