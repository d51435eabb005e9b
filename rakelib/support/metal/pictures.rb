# frozen_string_literal: true

require "tempfile"
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
      # A planted bug that the comparison must notice: where, what, and what instead.
      PLANT = ["struct NormParameters", "1.0f / sqrt(variance", "1.02f / sqrt(variance"].freeze
      PLANTED = "seeded_pictures/dinov3_vit"

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
        parts.zip(runs).map { |part, run| sound?("pictures: #{part.join(" ")}", run) }.push(noticed?).all?
      end

      private

      def one(names, **settings)
        @soft.run("bundle", "exec", "ruby", "-I", Soft::LIBRARY, "-I", "lib", PROGRAM, *names, **settings)
      end

      # Norms that are a fiftieth too large, in every type.
      def noticed?
        Tempfile.create("plant") do |file|
          within, from, to = PLANT
          file.write("#{within}\n#{from}\n=====\n#{to}\n")
          file.close
          found = one([PLANTED], plant: file.path).output.lines.grep(/^pictures .* MISS /).any?
          puts "#{found ? "noticed" : "NOT NOTICED"}: pictures: norms that are a fiftieth too large"
          found
        end
      end
    end
  end
end
