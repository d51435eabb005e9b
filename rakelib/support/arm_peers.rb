# frozen_string_literal: true

require_relative "arm_cycles"

module Tasks
  # Loops of other libraries for the same work, in objects that somebody compiled for ARM. None of their code is part
  # of this project.
  class ArmPeers
    # A folder with a folder of objects for each library.
    SETTING = "CANDLE_ARM_PEERS"

    # file:: pattern of an object's name
    # symbol:: of the function, where the object has several
    Loop = Struct.new(:work, :library, :file, :symbol, :instruction) do
      def goal = nil
      def planes = 1
      def multiplies = nil
    end

    ANY = //
    KLEIDIAI = [
      ["f32", "*_f32p16x1b_6x16_neon_mla_asm*", "fmla"],
      ["int8, dot products", "*_qai8dxp4x4_qsi8cxp4x4_16x4_neon_dotprod*", "sdot"],
      ["int8, matrices", "*_qai8dxp4x8_qsi8cxp4x8_16x4_neon_i8mm_asm*", "smmla"],
      ["bf16, matrices", "*_bf16p12x4b_8x12_neon_mmla*", "bfmmla"],
      ["Q4_0, dot products", "*_qsi8d32p4x4_qsi4c32p4x4_16x4_neon_dotprod_asm*", "sdot"],
      ["Q4_0, dot products, one row", "*_qsi8d32p1x4_qsi4c32p4x4_1x4_neon_dotprod_asm*", "sdot"],
      ["Q4_0, matrices", "*_qsi8d32p4x8_qsi4c32p4x8_16x4_neon_i8mm_asm*", "smmla"],
      ["Q4_0, matrices, one row", "*_qsi8d32p1x8_qsi4c32p4x8_1x4x32_neon_dotprod_asm*", "sdot"]
    ].map { |work, file, instruction| Loop.new(work, "KleidiAI", file, ANY, instruction) }.freeze
    # Its objects are those of processors with matrices of bytes, but for those in whose names dot products are meant.
    LLAMA_CPP = [
      ["f32", "sgemm.*", /gemm_bloc/, "fmla"],
      ["Q4_0, dot products", "repack.*", /\Aggml_gemm_q4_0_4x4_q8_0\z/, "sdot"],
      ["Q4_0, dot products, one row", "repack.*", /\Aggml_gemv_q4_0_4x4_q8_0\z/, "sdot"],
      ["Q4_0, matrices", "repack.*", /\Aggml_gemm_q4_0_4x8_q8_0\z/, "smmla"],
      ["Q4_0, matrices, one row", "repack.*", /\Aggml_gemv_q4_0_4x8_q8_0\z/, "sdot"],
      ["Q4_1, dot products, one row", "quants.*", /\Aggml_vec_dot_q4_1_q8_1\z/, "sdot"],
      ["Q4_1, matrices", "quants.*", /\Aggml_vec_dot_q4_1_q8_1\z/, "smmla"],
      ["Q8_0, dot products", "repack.*", /\Aggml_gemm_q8_0_4x4_q8_0\z/, "sdot"],
      ["Q8_0, dot products, one row", "repack.*", /\Aggml_gemv_q8_0_4x4_q8_0\z/, "sdot"],
      ["Q8_0, matrices", "repack.*", /\Aggml_gemm_q8_0_4x8_q8_0\z/, "smmla"],
      ["Q8_0, matrices, one row", "repack.*", /\Aggml_gemv_q8_0_4x8_q8_0\z/, "sdot"]
    ].map { |work, file, symbol, instruction| Loop.new(work, "llama.cpp", file, symbol, instruction) }.freeze

    # @return [Array<String>] what was looked for and not found
    attr_reader :missing

    # @param folder [String, nil]
    def initialize(folder)
      @folder = folder
      @missing = []
    end

    # @return [Array<ArmCycles::Result>]
    def results
      return [] unless @folder

      (KLEIDIAI + LLAMA_CPP).flat_map { |peer| results_of(peer) }
    end

    private

    def results_of(peer)
      object = Dir[File.join(@folder, peer.library, peer.file)].min
      raise ArgumentError, "there is no #{peer.file} of #{peer.library}" unless object

      ArmCycles.new(ArmCycles.disassemble(object, [peer.symbol]), [peer]).results
    rescue ArgumentError => e
      @missing << "#{peer.work} of #{peer.library} is missing: #{e.message}"
      []
    end
  end
end
